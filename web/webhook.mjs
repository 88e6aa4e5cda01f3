import { createHmac, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";

// fault returns why a webhook is refused, or null when it is genuine. headers have names in lower
// case, as those of node:http do; body is the bytes as they came.
function fault(secret, headers, body) {
  const { "webhook-id": id, "webhook-timestamp": sent, "webhook-signature": signatures } = headers;
  if (!(Math.abs(Date.now() / 1000 - Number.parseInt(sent, 10)) <= 300)) {
    return "its time is more than five minutes from now";
  }
  const key = Buffer.from(secret.replace("whsec_", ""), "base64");
  const right = createHmac("sha256", key).update(`${id}.${sent}.`).update(body).digest();
  for (const signature of (signatures ?? "").split(" ")) {
    const [version, encoded] = signature.split(",");
    const given = Buffer.from(encoded ?? "", "base64");
    if (version === "v1" && given.length === right.length && timingSafeEqual(given, right)) return null;
  }
  return "its signature is wrong";
}

const { SECRET, WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE } = process.env;
const headers = {
  "webhook-id": WEBHOOK_ID,
  "webhook-timestamp": WEBHOOK_TIMESTAMP,
  "webhook-signature": WEBHOOK_SIGNATURE,
};
const why = fault(SECRET, headers, readFileSync(0));
console.log(why ? `the webhook is refused: ${why}` : "the webhook is genuine");
process.exitCode = why ? 1 : 0;
