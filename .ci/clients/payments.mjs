// Connects an account with Stripe, in whose place a sandbox stands, and posts webhooks to the
// running service as Stripe would: signed by Stripe's own library for Node. Those that are right must be
// accepted, and those that are forged, old or from the future refused with 401. It prints a line for each,
// "ok NAME STATUS", and fails at the first that is answered otherwise. WIDGETD is the path of the program, which
// is run in the directory of the service's files, BASE the base address of the service, ACCOUNT the id of the
// account and PROVIDER the address of the sandbox:
//
//	WIDGETD=./widgetd BASE=http://127.0.0.1:8080/v1 ACCOUNT=acct_… PROVIDER=http://127.0.0.1:8084 node payments.mjs
import { spawn } from "node:child_process";
import { createServer } from "node:http";
import { buffer, text as textOf } from "node:stream/consumers";
import Stripe from "stripe";

const { WIDGETD, BASE, ACCOUNT, PROVIDER } = process.env;
if (!WIDGETD || !BASE || !ACCOUNT || !PROVIDER) throw new Error("WIDGETD, BASE, ACCOUNT and PROVIDER must be set");
const { webhooks } = new Stripe("rk_test_123");

// connect has the account connected through a server that passes each call on to the sandbox, and returns
// the connection's id, and the secret of its webhook, which only the answer that registers it has.
const connect = async () => {
  let SECRET;
  const between = createServer(async (call, answer) => {
    const { method, url, headers } = call;
    const got = await fetch(PROVIDER + url, {
      method,
      headers: { Authorization: headers.authorization, "Content-Type": headers["content-type"] ?? "" },
      body: method === "POST" ? await buffer(call) : undefined,
    });
    const body = await got.text();
    if (method === "POST" && url === "/v1/webhook_endpoints") SECRET = JSON.parse(body).secret;
    answer.writeHead(got.status, { "Content-Type": "application/json" }).end(body);
  });
  await new Promise((listening) => between.listen(0, "127.0.0.1", listening));
  try {
    const command = spawn(WIDGETD, ["payment", "connect", "stripe", "-account", ACCOUNT, "-secrets", "-", "-json",
      "-outbound-allow", "127.0.0.0/8", "-stripe-url", `http://127.0.0.1:${between.address().port}`],
      { stdio: ["pipe", "pipe", "inherit"] });
    command.stdin.end("key=rk_test_clients\n");
    const connected = JSON.parse(await textOf(command.stdout));
    if (connected.webhook_url !== `${BASE}/payments/stripe/${connected.id}`) throw new Error(JSON.stringify(connected));
    console.log(`ok connected ${connected.id}`);
    return { CONNECTION: connected.id, SECRET };
  } finally {
    between.closeAllConnections();
    between.close();
  }
};
const { CONNECTION, SECRET } = await connect();

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
