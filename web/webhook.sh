set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
refuse() { echo "the webhook is refused: $1"; exit 1; }
cat >"$work/body"

# 1. It was sent within five minutes of now.
now=$(date +%s)
{ [ "$WEBHOOK_TIMESTAMP" -ge $((now - 300)) ] && [ "$WEBHOOK_TIMESTAMP" -le $((now + 300)) ]; } 2>"$work/error" ||
  refuse 'its time is more than five minutes from now'

# 2. One of the signatures is that of id, time and body. (Other users of the machine can see the
# secret among the arguments of openssl: use this to look at one webhook, not to receive them.)
key=$(printf %s "${SECRET#whsec_}" | base64 -d | od -An -v -tx1 | tr -d ' \n')
right=$({ printf '%s.%s.' "$WEBHOOK_ID" "$WEBHOOK_TIMESTAMP"; cat "$work/body"; } |
  openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | base64)
for signature in $WEBHOOK_SIGNATURE; do
  if [ "$signature" = "v1,$right" ]; then
    echo "the webhook is genuine"
    exit 0
  fi
done
refuse 'its signature is wrong'
