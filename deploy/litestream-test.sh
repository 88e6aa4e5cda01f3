#!/bin/sh
# Builds Litestream in a temporary directory and runs the test of replication: it replicates
# under load, restarts Litestream and the service, deletes the database, restores it from the
# replica and compares the rows. Leaves nothing behind but Go's caches of modules and builds.
#
#   deploy/litestream-test.sh
#
# Needs Go, and the first time also the network.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^litestream=//p' .ci/run)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
GOBIN=$dir CGO_ENABLED=0 go install "$version"
PATH=$dir:$PATH CI=true go test -count=1 -run TestLitestream_ -v .
