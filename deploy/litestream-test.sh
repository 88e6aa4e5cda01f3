#!/bin/sh
# Builds Litestream in a temporary directory and runs the test of replicating: under
# load, restarting it and the service, losing the disk, restoring, comparing rows.
# Leaves nothing behind but what Go keeps of modules and builds.
#
#   deploy/litestream-test.sh
#
# Needs Go, and for the first time the network.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^litestream=//p' .ci/run)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
GOBIN=$dir CGO_ENABLED=0 go install "$version"
PATH=$dir:$PATH CI=true go test -count=1 -run TestLitestream_ -v .
