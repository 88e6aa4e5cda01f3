import base64, hashlib, hmac, os, sys, time


def fault(secret, headers, body):
    """Why a webhook is refused; None when it is genuine. body is the bytes as they came."""
    sent = headers["webhook-timestamp"]
    if not sent.isdecimal() or abs(time.time() - int(sent)) > 300:
        return "its time is more than five minutes from now"
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{sent}.".encode() + body
    right = b"v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256))
    signatures = headers["webhook-signature"].encode().split(b" ")
    if not any(hmac.compare_digest(signature, right) for signature in signatures):
        return "its signature is wrong"


headers = {
    "webhook-id": os.environ["WEBHOOK_ID"],
    "webhook-timestamp": os.environ["WEBHOOK_TIMESTAMP"],
    "webhook-signature": os.environ["WEBHOOK_SIGNATURE"],
}
why = fault(os.environ["SECRET"], headers, sys.stdin.buffer.read())
print("the webhook is refused: " + why if why else "the webhook is genuine")
sys.exit(1 if why else 0)
