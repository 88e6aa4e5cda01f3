#!/bin/sh
# Measures this machine, prints what the README's section on speed shows, and
# leaves nothing behind: size, start, memory, and leads a second with grouped
# writes beside the same program with one transaction for each request. All are
# medians: of five starts, of three runs.
#
#   ./load.sh [SECONDS]        of each of the six runs, 1 to 30; by default 5
#
# Needs Go, curl, wrk and systemd-socket-activate. It talks to itself, on loopback
# port $PORT (18080), and writes below $TMPDIR (/var/tmp: a disk, not memory). A
# run ends after its seconds; past a million leads the service would refuse more.
set -eu

seconds=${1:-5} port=${PORT:-18080} connections=64
[ "$seconds" -ge 1 ] && [ "$seconds" -le 30 ] || { echo "load.sh: SECONDS is a number from 1 to 30" >&2; exit 2; }
for program in go curl wrk systemd-socket-activate; do
	command -v "$program" >/dev/null || { echo "load.sh: $program is missing" >&2; exit 2; }
done
cd "$(dirname "$0")"
dir=$(mktemp -d "${TMPDIR:-/var/tmp}/widgetd-load.XXXXXX")
pid=
stop() {
	[ -z "$pid" ] || { kill "$pid" && wait "$pid" || true; }
	pid=
}
trap 'stop; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# start NAME: lets the first request start the binary NAME over a new database;
# sets pid, and waited to the seconds that this request took.
start() {
	rm -f "$dir"/widgetd.*
	"$dir/$1" init -db "$dir/widgetd.db" -key "$dir/widgetd.key" -base-url "http://127.0.0.1:$port/v1" >/dev/null
	: >"$dir/log"
	systemd-socket-activate -l "127.0.0.1:$port" "$dir/$1" serve -db "$dir/widgetd.db" -key "$dir/widgetd.key" -anonymous-rate 1000000 2>>"$dir/log" &
	pid=$!
	until grep -q '^Listening' "$dir/log"; do
		kill -0 "$pid" 2>/dev/null || { cat "$dir/log" >&2; exit 1; }
	done
	waited=$(curl -sf -o /dev/null -w '%{time_total}' "http://127.0.0.1:$port/v1/widget/health")
}

# leads NAME: prints how many leads a second the binary NAME keeps.
leads() {
	start "$1"
	wrk -t2 -c"$connections" -d"${seconds}s" -s "$dir/leads.lua" "http://127.0.0.1:$port/v1/widget/leads" >"$dir/out"
	stop
	if grep -q 'Non-2xx' "$dir/out"; then cat "$dir/out" >&2; exit 1; fi
	awk '/Requests\/sec/ { printf "%d\n", $2 }' "$dir/out"
}

# median FILE: prints the middle one of an odd number of lines.
median() {
	sort -n "$1" | awk '{ line[NR] = $0 } END { print line[(NR + 1) / 2] }'
}

cat >"$dir/leads.lua" <<'LUA'
local threads = 0
function setup(thread) thread:set("id", threads); threads = threads + 1 end
function init() n, wrk.headers["Content-Type"] = 0, "application/json" end
function request()
	n = n + 1
	return wrk.format("POST", nil, nil, '{"type":"newsletter","email":"guest' .. n .. '.' .. id .. '@example.com","source":"footer","page":"/lunch"}')
end
LUA

export CGO_ENABLED=0
go build -trimpath -ldflags='-s -w' -o "$dir/grouped" .
mkdir "$dir/source"
cp ./*.go ./*.sql ./*.html go.mod go.sum "$dir/source"
sed -i 's/^\(\tmaxBatch *= \)256 /\11 /' "$dir/source/store.go"
grep -q '^	maxBatch *= 1 ' "$dir/source/store.go" || { echo "load.sh: store.go has no maxBatch of 256" >&2; exit 1; }
(cd "$dir/source" && go build -trimpath -ldflags='-s -w' -o "$dir/single" .)

echo "processors              $(getconf _NPROCESSORS_ONLN)"
echo "binary, MiB             $(wc -c <"$dir/grouped" | awk '{ printf "%.1f", $1 / 1048576 }')"
for _ in 1 2 3 4 5; do
	stop
	start grouped
	echo "$waited" >>"$dir/starts"
done
sleep 2
echo "start to first 200, ms  $(median "$dir/starts" | awk '{ printf "%.0f", $1 * 1000 }')"
echo "idle memory, MiB        $(awk '/^VmRSS/ { printf "%.1f", $2 / 1024 }' "/proc/$pid/status")"
stop
for _ in 1 2 3; do
	leads single >>"$dir/singles"
	leads grouped >>"$dir/groups"
done
single=$(median "$dir/singles") grouped=$(median "$dir/groups")
echo "leads a second at $connections connections, one transaction each  $single"
echo "leads a second at $connections connections, grouped writes        $grouped"
awk "BEGIN { printf \"ratio                   %.1f\\n\", $grouped / $single }"
