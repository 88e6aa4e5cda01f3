// Posts webhooks to a running service as Stripe would: signed by Stripe's own library for Node. Those that
// are right must be accepted, and those that are forged, old or from the future refused with 401. It prints
// a line for each, "ok NAME STATUS", and fails at the first that is answered otherwise. BASE is the base
// address of the service, CONNECTION the id of a connection to Stripe, SECRET its webhook's whsec_ secret:
//
//	BASE=http://127.0.0.1:8080/v1 CONNECTION=con_… SECRET=whsec_… node payments.mjs
import Stripe from "stripe";

const { BASE, CONNECTION, SECRET } = process.env;
if (!BASE || !CONNECTION || !SECRET) throw new Error("BASE, CONNECTION and SECRET must be set");
const { webhooks } = new Stripe("rk_test_123");

const now = Math.floor(Date.now() / 1000);
let number = 0;
// event returns the text of an event about a PaymentIntent that the service does not know.
const event = (type) =>
  JSON.stringify({
    id: `evt_${now}_${++number}`,
    object: "event",
    type,
    created: now,
    livemode: false,
    data: { object: { id: "pi_unknown", object: "payment_intent", metadata: { note: "Käse à la carte" } } },
  });
const sign = (payload, options = {}) => webhooks.generateTestHeaderString({ payload, secret: SECRET, timestamp: now, ...options });

// post sends a body with a signature, and fails unless it is answered with that status.
const post = async (name, payload, signature, status) => {
  const answer = await fetch(`${BASE}/payments/stripe/${CONNECTION}`, {
    method: "POST",
    headers: { "Content-Type": "application/json; charset=utf-8", ...(signature && { "Stripe-Signature": signature }) },
    body: payload,
  });
  const text = await answer.text();
  const right = status === 200 ? answer.ok : answer.status === status;
  if (!right) throw new Error(`${name}: ${answer.status}, not ${status}: ${text}`);
  console.log(`ok ${name} ${answer.status}`);
};

const known = event("payment_intent.succeeded");
webhooks.constructEvent(known, sign(known), SECRET); // the library accepts what it has signed
await post("known", known, sign(known), 200);
await post("repeated", known, sign(known), 200);
const unknown = event("some.new_kind");
await post("unknown", unknown, sign(unknown), 200);
await post("two-secrets", known, sign(known, { secret: "whsec_before" }) + "," + sign(known).split(",")[1], 200);
await post("nearly-old", known, sign(known, { timestamp: now - 240 }), 200);
await post("old", known, sign(known, { timestamp: now - 400 }), 401);
await post("from-the-future", known, sign(known, { timestamp: now + 400 }), 401);
await post("another-secret", known, sign(known, { secret: "whsec_other" }), 401);
await post("another-body", known + " ", sign(known), 401);
await post("old-scheme", known, sign(known, { scheme: "v0" }), 401);
await post("unsigned", known, "", 401);
