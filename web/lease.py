import base64, hashlib, json, os, re, subprocess, sys, tempfile, time

try:  # the package cryptography; without it the program openssl does the same
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
except ImportError:
    Ed25519PublicKey = None


def decode(part):
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def encode(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sha256(text):
    return encode(hashlib.sha256(text.encode()).digest())


def signed(der, text, signature):
    """Whether the key, as DER, made the Ed25519 signature of the text."""
    if Ed25519PublicKey:
        try:
            Ed25519PublicKey.from_public_bytes(der[-32:]).verify(signature, text)
            return True
        except InvalidSignature:
            return False
    with tempfile.TemporaryDirectory() as d:
        for name, data in ("key", der), ("text", text), ("signature", signature):
            with open(os.path.join(d, name), "wb") as f:
                f.write(data)
        command = "openssl pkeyutl -verify -pubin -keyform DER -inkey key -rawin -in text -sigfile signature"
        return subprocess.run(command.split(), cwd=d, capture_output=True).returncode == 0


# The pinned keys, by their thumbprints (RFC 7638).
keys = {}
with open("public.pem") as f:
    for pem in re.findall(r"-----BEGIN[^-]*-----([^-]*)-----END", f.read()):
        der = base64.b64decode(pem)
        keys[sha256('{"crv":"Ed25519","kty":"OKP","x":"%s"}' % encode(der[-32:]))] = der

# The mark, in Unix seconds. It grows with the monotonic clock, and to the signed iat of a token.
mark, seen = 0.0, time.monotonic()
if os.path.exists("lease.mark"):
    with open("lease.mark") as f:
        mark = float(f.read())


def grow(iat=0):
    global mark, seen
    mark = max(mark + time.monotonic() - seen, iat)
    seen = time.monotonic()
    with open("lease.mark.new", "w") as f:
        f.write("%d\n" % mark)
    os.replace("lease.mark.new", "lease.mark")


def fault(token, fingerprint, audience):
    """Why a lease does not hold; None when it holds."""
    text, _, signature = token.rpartition(".")
    try:
        header, payload = (json.loads(decode(part)) for part in text.split("."))
        kid, made = header["kid"], decode(signature)
    except (ValueError, TypeError, KeyError):
        return "it is damaged"
    if kid not in keys:
        return "it names a key that is not pinned"
    if not signed(keys[kid], text.encode(), made):
        return "its signature is wrong"
    grow(payload["iat"])
    if header["typ"] != "at+jwt":
        return "it is another kind of token"
    if payload["aud"] != audience:
        return "it is of another service"
    if payload.get("fph") != sha256(fingerprint):
        return "it is of another device"
    if payload["exp"] <= max(time.time(), mark):
        return "it has ended"


# An application that goes on running asks again, and calls grow(), once a minute.
why = fault(os.environ["TOKEN"], os.environ["FINGERPRINT"], os.environ["AUDIENCE"])
print("the lease does not hold: " + why if why else "the lease holds")
sys.exit(1 if why else 0)
