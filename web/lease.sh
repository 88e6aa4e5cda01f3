set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
refuse() { echo "the lease does not hold: $1"; exit 1; }
part() { printf %s "$TOKEN" | cut -d. -f"$1"; }
decode() { tr -- '-_' '+/' | awk '{ while (length($0) % 4) $0 = $0 "="; print }' | base64 -d; }
encode() { base64 | tr -d '=\n' | tr '+/' '-_'; }
sha256() { openssl dgst -sha256 -binary; }
claim() { part 2 | decode | jq -r ".$1"; }

# 1. A pinned key, found by its thumbprint, made the signature.
kid=$(part 1 | decode 2>/dev/null | jq -r .kid 2>/dev/null) || kid=
[ -n "$kid" ] || refuse 'it is damaged'
awk -v dir="$work" '/BEGIN/ { n++ } n { print >(dir "/key" n) }' public.pem
pinned=
for key in "$work"/key*; do
  x=$(openssl pkey -pubin -in "$key" -outform DER | tail -c 32 | encode)
  thumbprint=$(printf '{"crv":"Ed25519","kty":"OKP","x":"%s"}' "$x" | sha256 | encode)
  if [ "$thumbprint" = "$kid" ]; then pinned=$key; fi
done
[ -n "$pinned" ] || refuse 'it names a key that is not pinned'
printf %s "${TOKEN%.*}" >"$work/signed"
part 3 | decode >"$work/signature" 2>/dev/null || refuse 'it is damaged'
openssl pkeyutl -verify -pubin -inkey "$pinned" -rawin -in "$work/signed" \
  -sigfile "$work/signature" >"$work/answer" 2>&1 || refuse 'its signature is wrong'

# The mark grows to what was signed. (A shell has no monotonic clock.)
mark=$(cat lease.mark 2>/dev/null || echo 0)
iat=$(claim iat)
if [ "$iat" -gt "$mark" ]; then mark=$iat; fi
echo "$mark" >lease.mark.new
mv lease.mark.new lease.mark

# 2. It is a token of this kind, of this service. 3. It is this device's.
[ "$(part 1 | decode | jq -r .typ)" = at+jwt ] || refuse 'it is another kind of token'
[ "$(claim aud)" = "$AUDIENCE" ] || refuse 'it is of another service'
[ "$(claim fph)" = "$(printf %s "$FINGERPRINT" | sha256 | encode)" ] || refuse 'it is of another device'

# 4. It ends later than effective now.
now=$(date +%s)
if [ "$mark" -gt "$now" ]; then now=$mark; fi
[ "$(claim exp)" -gt "$now" ] || refuse 'it has ended'
echo 'the lease holds'
