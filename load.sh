#!/bin/sh
# Measures the program on this machine and prints the numbers of docs/performance.md. It removes
# all files that it makes, and fails if an answer is not a success.
#
#   ./load.sh [SECONDS]        of each run, 1 to 30; by default 2, which takes about seven minutes
#   ./load.sh SECONDS once     one run of each in place of five, on a tenth of the licences and devices, and not with
#                              a core each: in half a minute, that it still works (.ci/run), not what it measures
#
# What it measures, in this order:
#
#   binary       its size, stripped.
#   start        from the first request, for which socket activation starts the program with a new
#                database, to its answer. Memory is that two seconds later, idle.
#   leads        how many a second are stored with 64 connections, with grouped writes and with one
#                transaction for each request: the same program, built with batches of one.
#   activations  a second, each of a new device, on 20,000 small licences and on one licence that has
#                100,000 devices.
#   ratios       requests a second, and the 99th percentile of the latency, ÷ those of a bare net/http
#                server that reads and decodes the same JSON and answers a constant of the same length
#                (the test binary with -baseline). First client and server share all cores, then each has one.
#
# All numbers are medians: of five starts, or of five runs that alternate with those that they are
# compared with. Absolute numbers depend on the machine; ratios depend on it less. Most ratios vary by
# a tenth between runs of this script.
#
# Needs Go, curl, jq, sqlite3, wrk, taskset and systemd-socket-activate. It talks to itself, on
# loopback ports $PORT (18080) and the next, and writes below $TMPDIR (by default /var/tmp, which is
# on a disk: on one in memory a sync costs nothing, and the numbers of writes mean nothing).
set -eu

seconds=${1:-2} port=${PORT:-18080} connections=64 unlimited=1000000000
runs='1 2 3 4 5' licenses=20000 devices=100000 pins='no yes'
[ "${2:-}" != once ] || runs=1 licenses=2000 devices=10000 pins=no
[ "$seconds" -ge 1 ] && [ "$seconds" -le 30 ] && { [ $# -lt 2 ] || [ "$2 $#" = 'once 2' ]; } ||
	{ echo "load.sh: usage: ./load.sh [SECONDS [once]], from 1 to 30" >&2; exit 2; }
for program in go curl jq sqlite3 wrk taskset systemd-socket-activate; do
	command -v "$program" >/dev/null || { echo "load.sh: $program is missing" >&2; exit 2; }
done
cd "$(dirname "$0")"
dir=$(mktemp -d "${TMPDIR:-/var/tmp}/widgetd-load.XXXXXX")
pid= baseline=
stop() {
	[ -z "$pid" ] || { kill "$pid" && wait "$pid" || true; }
	pid=
}
trap 'stop; [ -z "$baseline" ] || kill "$baseline"; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# start NAME: starts the binary NAME with a new database, by socket activation: its first
# request starts it. Sets pid, and waited to the seconds that this request took.
start() {
	rm -f "$dir"/widgetd.*
	"$dir/$1" init -db "$dir/widgetd.db" -key "$dir/widgetd.key" \
		-base-url "http://127.0.0.1:$port/v1" >/dev/null
	: >"$dir/log"
	systemd-socket-activate -l "127.0.0.1:$port" "$dir/$1" serve -db "$dir/widgetd.db" \
		-key "$dir/widgetd.key" -anonymous-rate "$unlimited" -visitor-rate "$unlimited" 2>>"$dir/log" &
	pid=$!
	until grep -q '^Listening' "$dir/log"; do
		kill -0 "$pid" 2>/dev/null || { cat "$dir/log" >&2; exit 1; }
	done
	waited=$(curl -sf -o /dev/null -w '%{time_total}' "http://127.0.0.1:$port/v1/widget/health")
}

# leads NAME: prints how many leads a second the binary NAME stores.
leads() {
	start "$1"
	wrk --timeout 30s -t2 -c"$connections" -d"${seconds}s" -s "$dir/leads.lua" \
		"http://127.0.0.1:$port/v1/widget/leads" >"$dir/out"
	stop
	judge
	awk '/Requests\/sec/ { printf "%d\n", $2 }' "$dir/out"
}

# judge fails unless each answer of the last run was a success and no connection broke. wrk counts
# what is neither 2xx nor 3xx.
judge() {
	if grep -q -e 'Non-2xx' -e 'Socket errors' "$dir/out" || ! grep -q 'Requests/sec' "$dir/out"; then
		cat "$dir/out" >&2
		exit 1
	fi
}

# memory PID: prints what a process has in memory, in MiB, and what of that is its own and no part of a file.
memory() {
	awk '/^VmRSS/ { all = $2 } /^RssAnon/ { own = $2 }
		END { printf "%.1f, anonymous %.1f", all / 1024, own / 1024 }' "/proc/$1/status"
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
	local email = 'guest' .. n .. '.' .. id .. '@example.com'
	return wrk.format("POST", nil, nil,
		'{"type":"newsletter","email":"' .. email .. '","source":"footer","page":"/lunch"}')
end
LUA

export CGO_ENABLED=0
go build -trimpath -ldflags='-s -w' -o "$dir/grouped" .
sed 's/^\(\tmaxBatch *= \)256 /\11 /' store_writer.go >"$dir/store_writer.go"
grep -q '^	maxBatch *= 1 ' "$dir/store_writer.go" ||
	{ echo "load.sh: store_writer.go has no maxBatch of 256" >&2; exit 1; }
echo '{"Replace":{"store_writer.go":"'"$dir"'/store_writer.go"}}' >"$dir/overlay.json"
go build -trimpath -ldflags='-s -w' -overlay "$dir/overlay.json" -o "$dir/single" .

echo "processors              $(getconf _NPROCESSORS_ONLN)"
echo "binary, MiB             $(wc -c <"$dir/grouped" | awk '{ printf "%.1f", $1 / 1048576 }')"
for _ in $runs; do
	stop
	start grouped
	echo "$waited" >>"$dir/starts"
done
sleep 2
echo "start to first 200, ms  $(median "$dir/starts" | awk '{ printf "%.0f", $1 * 1000 }')"
echo "idle memory, MiB        $(memory "$pid")"
stop
for _ in $runs; do
	leads single >>"$dir/singles"
	leads grouped >>"$dir/groups"
done
single=$(median "$dir/singles") grouped=$(median "$dir/groups")
echo "leads a second at $connections connections, one transaction each  $single"
echo "leads a second at $connections connections, grouped writes        $grouped"
awk "BEGIN { printf \"ratio                   %.1f\\n\", $grouped / $single }"

widgetd() { "$dir/grouped" "$@" -db "$dir/widgetd.db" -key "$dir/widgetd.key"; }
# unlimit ACCOUNT: gives it the highest rate there is.
unlimit() { widgetd account set-rate "$1" "$unlimited" >/dev/null; }

# Activating: each request brings a new device, to one of the small licences or to the large one.
cat >"$dir/activate.lua" <<'LUA'
local threads = 0
function setup(thread) thread:set("id", threads); threads = threads + 1 end
function init()
	n, key, run, small = 0, os.getenv("LARGE_KEY"), os.getenv("RUN"), os.getenv("LICENSES")
	wrk.headers["Content-Type"] = "application/json"
end
function request()
	n = n + 1
	local k = key ~= "" and key or string.format("LOAD-%012d-ABCDEFGH", (2 * n + id) % small)
	return wrk.format("POST", nil, nil,
		'{"license_key":"' .. k .. '","fingerprint":"' .. run .. '.' .. id .. '.' .. n .. '"}')
end
LUA
rm -f "$dir"/widgetd.*
widgetd init -base-url "http://127.0.0.1:$port/v1" >/dev/null
account=$(widgetd account list -json | jq -r .id)
unlimit "$account"
awk 'BEGIN { print "key,product"; for (i = 0; i < '$licenses'; i++) printf "LOAD-%012d-ABCDEFGH,kds\n", i }' \
	>"$dir/licenses.csv"
widgetd license import "$dir/licenses.csv" -account "$account" >/dev/null 2>>"$dir/log"
large=$(widgetd license add -json -account "$account" -product kds)
sqlite3 "$dir/widgetd.db" "
	PRAGMA foreign_keys = ON;
	INSERT INTO devices (id, license_id, fingerprint, state, activated_at, last_seen_at)
	SELECT printf('dev_%026d', value), '$(echo "$large" | jq -r .id)', randomblob(32), 'active',
		strftime('%Y-%m-%dT%H:%M:%SZ', 'now'), strftime('%Y-%m-%dT%H:%M:%SZ', 'now')
	FROM generate_series(1, $devices);"
"$dir/grouped" serve -addr "127.0.0.1:$port" -db "$dir/widgetd.db" -key "$dir/widgetd.key" 2>>"$dir/log" &
pid=$!
until curl -sf -o "$dir/health" "http://127.0.0.1:$port/v1/widget/health"; do kill -0 "$pid"; done
# activations [KEY]: prints how many devices a second are activated on the licence of that key, or
# on the small ones.
activations() {
	LARGE_KEY=${1:-} LICENSES=$licenses RUN=$run \
		wrk --timeout 30s -t2 -c"$connections" -d"${seconds}s" -s "$dir/activate.lua" \
		"http://127.0.0.1:$port/v1/widget/license/activate" >"$dir/out"
	judge
	awk '/Requests\/sec/ { printf "%d\n", $2 }' "$dir/out"
}
for run in $runs; do
	activations >>"$dir/small"
	activations "$(echo "$large" | jq -r .key)" >>"$dir/large"
done
stop
small=$(median "$dir/small") large=$(median "$dir/large")
echo "activations a second on small licences                    $small"
echo "activations a second on one licence of $devices devices     $large"
awk "BEGIN { printf \"ratio                   %.2f\\n\", $large / $small }"

# The bare server is the test binary.
go test -c -o "$dir/baseline.test" .
root=http://127.0.0.1:$port/v1 bare=http://127.0.0.1:$((port + 1))/v1
rm -f "$dir"/widgetd.*
widgetd init -base-url "$root" -origin https://www.example.com >/dev/null
account=$(widgetd account list -json | jq -r .id)
unlimit "$account"
license=$(widgetd license add -json -account "$account" -product kds -max-devices 2 | jq -r .key)
widget=$(widgetd widget add -json -account "$account" Lunch | jq -r .id)
json='Content-Type: application/json'

# script NAME METHOD BODY [HEADER VALUE]...: writes the Lua script with the request for wrk.
script() {
	file=$dir/$1.lua
	printf 'wrk.method = "%s"\nwrk.headers["Content-Type"] = "application/json"\n' "$2" >"$file"
	printf 'wrk.body = [[%s]]\n' "$3" >>"$file"
	shift 3
	while [ $# -gt 0 ]; do
		printf 'wrk.headers["%s"] = [[%s]]\n' "$1" "$2" >>"$file"
		shift 2
	done
}

# rate SCRIPT URL: prints requests a second.
rate() {
	$client wrk --timeout 30s --latency -t"$threads" -c"$connections" -d"${seconds}s" -s "$dir/$1.lua" "$2" >"$dir/out"
	judge
	awk '/Requests\/sec/ { print $2 }' "$dir/out"
}

# p99 prints the 99th percentile of the last run, in milliseconds.
p99() {
	awk '$1 == "99%" { v = $2 + 0; if ($2 ~ /us$/) v /= 1000; else if ($2 !~ /ms$/) v *= 1000; print v }' \
		"$dir/out"
}

# compare LABEL SCRIPT PATH: prints the median ratios of the service to the bare server, of
# requests a second and of the 99th percentile of the latency.
compare() {
	rm -f "$dir/ratios" "$dir/tails"
	for _ in $runs; do
		one=$(rate "$2" "$bare$3") tail=$(p99)
		two=$(rate "$2" "$root$3")
		awk "BEGIN { print $two / $one }" >>"$dir/ratios"
		awk "BEGIN { print $(p99) / $tail }" >>"$dir/tails"
	done
	printf '%-46s %.2f   p99 %.1f\n' "$1" "$(median "$dir/ratios")" "$(median "$dir/tails")"
}

for pinned in $pins; do
	server= client= threads=2
	if [ "$pinned" = yes ]; then server='taskset -c 0' client='taskset -c 1' threads=1; fi
	$server "$dir/grouped" serve -addr "127.0.0.1:$port" -db "$dir/widgetd.db" -key "$dir/widgetd.key" \
		-anonymous-rate "$unlimited" -visitor-rate "$unlimited" 2>>"$dir/log" &
	pid=$!
	$server "$dir/baseline.test" -baseline "127.0.0.1:$((port + 1))" &
	baseline=$!
	until curl -sf -o "$dir/health" "$root/widget/health" && curl -sf -o "$dir/constant" "$bare/"; do
		kill -0 "$pid" && kill -0 "$baseline"
	done
	token=$(curl -s "$root/widget/license/activate" -H "$json" \
		-d '{"license_key":"'"$license"'","fingerprint":"kitchen-1"}' | jq -r .token)
	script token POST '{}' Authorization "Bearer $token"
	script kept POST '{"license_key":"'"$license"'","fingerprint":"kitchen-1"}'
	script fresh POST '{"license_key":"'"$license"'","fingerprint":"kitchen-1","nonce":"n"}'
	script stats GET ''
	etag=$(curl -si "$root/widget/stats?widget=$widget" | tr -d '\r' |
		awk 'tolower($1) == "etag:" { print $2 }')
	script unchanged GET '' If-None-Match "$etag"
	script event POST '{"widget":"'"$widget"'","events":[{"type":"view"},{"type":"click","item":"Pizza"}]}' \
		Origin https://www.example.com
	echo
	echo "÷ bare net/http, $connections connections, server and client on a core each: $pinned"
	compare 'verify, with a token' token /widget/license/verify
	compare 'verify, with a kept signature in the answer' kept /widget/license/verify
	compare 'verify, with a fresh signature in the answer' fresh /widget/license/verify
	compare 'statistics' stats "/widget/stats?widget=$widget"
	compare 'statistics, not modified' unchanged "/widget/stats?widget=$widget"
	compare 'a durable lead' leads /widget/leads
	compare 'durable events' event /widget/events
	echo "memory under load, MiB  $(memory "$pid")"
	stop
	kill "$baseline"
	{ wait "$baseline" || true; } 2>/dev/null # hides the shell's message about the signal
	baseline=
done
