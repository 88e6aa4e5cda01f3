set -eu
check() { TOKEN=$1 sh lease.sh; }
claim() {
  printf %s "$1" | cut -d. -f2 | tr -- '-_' '+/' |
    awk '{ while (length($0) % 4) $0 = $0 "="; print }' | base64 -d | jq -r ".$2"
}
save() {
  printf %s "$1" >lease.jwt.new
  mv lease.jwt.new lease.jwt
}
post() {
  curl -s --max-time 20 "$AUDIENCE/widget/license/$1" -H 'Content-Type: application/json' \
    -H "Authorization: Bearer $(cat lease.jwt)" -d '{}'
}

case $1 in
request) # Somebody carries this to the page /activate …
  openssl rand -hex 16 >lease.nonce
  jq -n --arg k "$LICENSE_KEY" --arg f "$FINGERPRINT" --arg p "$PRODUCT" --arg n "$(cat lease.nonce)" \
    '{license_key: $k, fingerprint: $f, product: $p, nonce: $n, offline: true}' ;;
take) # … and brings the lease back, which is read here.
  token=$(tr -d ' \r\n')
  said=$(check "$token") || { echo "$said"; exit 1; }
  [ "$(claim "$token" nonce)" = "$(cat lease.nonce)" ] || { echo 'it answers another request'; exit 1; }
  [ "$(claim "$token" prd)" = "$PRODUCT" ] || { echo 'it is for another product'; exit 1; }
  save "$token"
  echo activated ;;
start) # Each time that the application starts, and once a minute while it runs.
  check "$(cat lease.jwt)" ;;
online) # Whenever there is a network. Only an answer with valid changes anything.
  answer=$(post verify) || answer='{}'
  case $(printf %s "$answer" | jq -r .valid) in
  true)
    token=$(printf %s "$answer" | jq -r '.token // empty')
    # An offline lease lasts longer than those that follow it, so the one that ends last is kept.
    if [ -n "$token" ] && [ "$(claim "$token" exp)" -gt "$(claim "$(cat lease.jwt)" exp)" ] &&
      check "$token" >lease.check; then save "$token"; fi
    echo valid ;;
  false)
    rm lease.jwt
    printf %s "$answer" | jq -r .code ;;
  *) echo 'not known now' ;;
  esac ;;
leave) # Gives the seat back, which an offline lease keeps until it ends.
  answer=$(post deactivate) || answer='{}'
  if [ "$(printf %s "$answer" | jq -r .released)" = true ]; then rm lease.jwt; fi
  printf %s "$answer" | jq -r 'if .released then "released" elif .until then "kept until \(.until)" else "not released" end' ;;
esac
