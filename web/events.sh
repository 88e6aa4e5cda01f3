set -eu
answer=events.json
[ -s "$answer" ] || echo '{"data":[],"next":"start","more":true}' >"$answer"
act() { jq -r '.data[] | "\(.id) \(.type)"' "$answer"; } # an event may come twice: know it by its id

act # what was kept, and perhaps not done, before the last stop
while :; do
  wait=$(jq 'if .more then 0 else 15 end' "$answer")
  status=$(curl -s --max-time 20 -o "$answer.new" -w '%{http_code}' -G "$BASE/events" \
    -H @- --data-urlencode "after=$(jq -r .next "$answer")" --data "wait=$wait" <<END || true
Authorization: Bearer $TOKEN
END
  )
  case $status in
  200)
    sync "$answer.new" && mv "$answer.new" "$answer" # kept before anything is done
    act
    ;;
  4[0-8]*)
    jq -r .detail "$answer.new" >&2 # 410: read the lists, then begin with "next":"now"
    exit 1
    ;;
  *) sleep 5 ;; # busy, too many, or no network
  esac
done
