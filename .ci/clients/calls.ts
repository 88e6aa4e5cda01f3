// Calls every operation of the document with the client that openapi-typescript generated from it.
// The environment names the service and what .ci/clients/run has made there.
import createClient from "openapi-fetch";
import { createHash, randomBytes } from "node:crypto";
import { agree } from "./agree.mjs";
import type { components, paths, webhooks } from "./api.d.ts";

const env = (name: string): string => {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set`);
  return value;
};
const base = env("BASE");
const root = new URL(base).origin;
const account_id = env("ACCOUNT");
const widget = env("WIDGET");
const Origin = env("ORIGIN");

const anyone = createClient<paths>({ baseUrl: base });
const atRoot = createClient<paths>({ baseUrl: root });
const operator = createClient<paths>({ baseUrl: base, headers: { Authorization: `Bearer ${env("TOKEN")}` } });

// need returns the data of an answer that must be a success.
const need = async <T>(name: string, call: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> => {
  const { data, error, response } = await call;
  if (!response.ok) throw new Error(`${name}: ${response.status} ${JSON.stringify(error)}`);
  console.log(`${response.status} ${name}`);
  return data as T;
};

const lead = await need("createLead", anyone.POST("/widget/leads", {
  params: { header: { "Idempotency-Key": crypto.randomUUID() } },
  body: { type: "newsletter", email: "guest@example.com", source: "footer", page: "/lunch", fields: { name: "Ada" } },
}));
const leads = await need("listLeads", operator.GET("/leads", { params: { query: { type: "newsletter", limit: 10 } } }));
if (!leads.data.some((l) => l.id === lead.id)) throw new Error("the lead is not listed");

const issued = await need("createLicense", operator.POST("/licenses", {
  body: { account_id, product: "kitchen-display", max_devices: 2, max_transfers: null, duration_days: 30, entitlements: ["kds"] },
}));
const plan = await need("createPlan", operator.POST("/plans", { body: { name: "Pro", product: "kitchen-display" } }));
const ofPlan = { path: { id: plan.id } };
await need("listPlans", operator.GET("/plans"));
await need("getPlan", operator.GET("/plans/{id}", { params: ofPlan }));
await need("updatePlan", operator.PATCH("/plans/{id}", { params: ofPlan, body: { grace_days: 7 } }));
await need("applyPlan", operator.POST("/plans/{id}/apply", {
  params: { ...ofPlan, query: { dry_run: "true" } }, body: {},
}));
await need("retirePlan", operator.POST("/plans/{id}/retire", { params: ofPlan, body: {} }));
const licence = { path: { id: issued.id } };
await need("listLicenses", operator.GET("/licenses", { params: { query: { status: "active", q: issued.key } } }));
await need("getLicense", operator.GET("/licenses/{id}", { params: licence }));
await need("updateLicense", operator.PATCH("/licenses/{id}", { params: licence, body: { plan: "pro", customer: null } }));

const device = { license_key: issued.key, fingerprint: "kitchen-1" };
const active = await need("activateLicense", anyone.POST("/widget/license/activate", {
  body: { ...device, device: { name: "Kitchen 1" } },
}));
const verdict = await need("verifyLicense", anyone.POST("/widget/license/verify", {
  body: {}, headers: { Authorization: `Bearer ${active.token}` },
}));
if (!verdict.valid || verdict.license?.seats.used !== 1) throw new Error(JSON.stringify(verdict));
const devices = await need("listDevices", operator.GET("/licenses/{id}/devices", { params: licence }));
await need("deactivateLicense", anyone.POST("/widget/license/deactivate", { body: device }));
await need("releaseDevice", operator.DELETE("/licenses/{id}/devices/{device_id}", {
  params: { path: { id: issued.id, device_id: devices.data[0]!.id } },
}));
await need("renewLicense", operator.POST("/licenses/{id}/renew", { params: licence, body: { days: 30 } }));
await need("rotateLicenseKey", operator.POST("/licenses/{id}/rotate-key", { params: licence, body: { end_tokens: true } }));
await need("resetLicenseTransfers", operator.POST("/licenses/{id}/reset-transfers", { params: licence, body: {} }));
await need("suspendLicense", operator.POST("/licenses/{id}/suspend", { params: licence, body: { reason: "a test" } }));
await need("reinstateLicense", operator.POST("/licenses/{id}/reinstate", { params: licence }));
await need("revokeLicense", operator.POST("/licenses/{id}/revoke", { params: licence, body: {} }));

await need("sendWidgetEvents", anyone.POST("/widget/events", {
  params: { header: { Origin } }, headers: { Origin },
  body: { widget, events: [{ type: "view" }, { type: "click", item: "Rösti" }] },
}));
const stats = await need("getWidgetStats", anyone.GET("/widget/stats", { params: { query: { widget, interval: "week" } } }));
if (!("top_items" in stats) || stats.totals.clicks < 1) throw new Error(JSON.stringify(stats));
await need("listEvents", operator.GET("/events", { params: { query: { type: "license.revoked", license_id: issued.id } } }));

// Nobody listens at the webhook's address: its test fails, which makes a delivery.
const added = await need("createWebhook", operator.POST("/webhooks", {
  params: { query: { account_id }, header: { "Idempotency-Key": crypto.randomUUID() } },
  body: { url: "http://127.0.0.1:1/", types: ["lead.created"], description: "A test" },
}));
const webhook = { path: { id: added.id } };
await need("listWebhooks", operator.GET("/webhooks", { params: { query: { account_id, limit: 10 } } }));
await need("getWebhook", operator.GET("/webhooks/{id}", { params: webhook }));
await need("updateWebhook", operator.PATCH("/webhooks/{id}", { params: webhook, body: { types: ["license.created"], description: null } }));
await need("testWebhook", operator.POST("/webhooks/{id}/test", { params: webhook, body: {} }));
await need("enableWebhook", operator.POST("/webhooks/{id}/enable", { params: webhook, body: {} }));
const rotated = await need("rotateWebhookSecret", operator.POST("/webhooks/{id}/rotate-secret", { params: webhook, body: {} }));
if (rotated.secret === added.secret) throw new Error("the secret is the same");
const replay = await operator.POST("/webhooks/{id}/replay", { params: webhook, body: { since: new Date().toISOString() } });
if (replay.error?.code !== "webhook_not_enabled") throw new Error(JSON.stringify(replay.error));
console.log(`${replay.response.status} replayWebhook`);
let delivery: components["schemas"]["Delivery"] | undefined;
for (let tries = 0; !delivery && tries < 50; tries++) {
  delivery = (await need("listDeliveries", operator.GET("/webhooks/{id}/deliveries", {
    params: { ...webhook, query: { outcome: "failed" } },
  }))).data[0];
  if (!delivery) await new Promise((resolve) => setTimeout(resolve, 100));
}
if (delivery?.error !== "connection") throw new Error(JSON.stringify(delivery));
await need("retryDelivery", operator.POST("/webhooks/{id}/deliveries/{delivery}/retry", {
  params: { path: { id: added.id, delivery: delivery.id } }, body: {},
}));
await need("deleteWebhook", operator.DELETE("/webhooks/{id}", { params: webhook }));
type Posted = webhooks["event"]["post"]["requestBody"]["content"]["application/json"];
const posted: Posted = { id: delivery.event_id, type: delivery.type, timestamp: delivery.at, data: { account_id } };
if (posted.type !== "webhook.test") throw new Error(JSON.stringify(posted));

// Orders, which a guest pays at the sandbox to which .ci/clients/run has connected the account.
const settings = await need("updateAccount", operator.PATCH("/account", {
  params: { query: { account_id } }, body: { zone: "Europe/Zurich", legal_name: "Example Ltd", capture_on: "handover" },
}));
if (settings.capture_on !== "handover") throw new Error(JSON.stringify(settings));
await need("getAccount", operator.GET("/account", { params: { query: { account_id } } }));
const order = async () => await need("createOrder", operator.POST("/orders", {
  params: { query: { account_id }, header: { "Idempotency-Key": crypto.randomUUID() } },
  body: {
    currency: "CHF", tip: 300, discount: 100, delivery: { amount: 500, vat_rate: 810 }, reference: crypto.randomUUID(),
    lines: [
      { name: "Pizza Margherita", quantity: 2, unit_amount: 1650, vat_rate: 260, group: "food" },
      { name: "Merlot", quantity: 1, unit_amount: 2400, vat_rate: 810 },
    ],
    customer: { name: "Ada", note: "Second floor" }, return_url: `${Origin}/thanks`, expires_in: 3600,
  },
}));
// press submits a form as the guest's browser does, and returns where the answer leads.
const press = async (url: string, fields: Record<string, string>): Promise<string> => {
  const answer = await fetch(url, { method: "POST", body: new URLSearchParams(fields), redirect: "manual" });
  const to = answer.headers.get("Location");
  if (answer.status !== 303 || !to) throw new Error(`POST ${url}: ${answer.status}`);
  return to;
};
// pay does what a guest does until the order is authorised, and returns its path parameters.
const pay = async ({ id, pay_url }: { id: string; pay_url: string | null }) => {
  const receipt = await press(await press(pay_url!, { method: "card" }), { do: "pay" });
  if (!(await fetch(receipt)).ok) throw new Error(receipt);
  return { path: { id } };
};
// becomes waits until an order has a state.
const becomes = async (id: string, state: components["schemas"]["Order"]["state"]) => {
  for (let tries = 0; tries < 100; tries++) {
    const now = await need("getOrder", operator.GET("/orders/{id}", { params: { path: { id } } }));
    if (now.state === state) return now;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`${id} is not ${state}`);
};
const sold = await pay(await order());
const accepted = await need("acceptOrder", operator.POST("/orders/{id}/accept", {
  params: sold, body: { lines: [{ line: 0, quantity: 1 }] },
}));
if (accepted.state !== "accepted" || accepted.total >= accepted.ordered_total) throw new Error(JSON.stringify(accepted));
await need("captureOrder", operator.POST("/orders/{id}/capture", { params: sold, body: {} }));
await becomes(accepted.id, "paid");
const refund = await need("refundOrder", operator.POST("/orders/{id}/refunds", {
  params: { ...sold, header: { "Idempotency-Key": crypto.randomUUID() } },
  body: { lines: [{ line: 1, quantity: 1 }], reason: "corked" },
}));
const refunded = await becomes(accepted.id, "part_refunded");
if (refunded.refunded !== refund.amount || refunded.refunds[0]?.state !== "succeeded") throw new Error(JSON.stringify(refunded));
await need("rejectOrder", operator.POST("/orders/{id}/reject", { params: await pay(await order()), body: {} }));
const outside = { path: { id: (await order()).id } };
const inCash = await need("markOrderPaid", operator.POST("/orders/{id}/paid", { params: outside, body: { method: "cash" } }));
if (inCash.state !== "paid" || inCash.method !== "cash") throw new Error(JSON.stringify(inCash));
await need("undoOrderPaid", operator.DELETE("/orders/{id}/paid", { params: outside }));
await need("cancelOrder", operator.POST("/orders/{id}/cancel", { params: outside, body: {} }));
const orders = await need("listOrders", operator.GET("/orders", { params: { query: { account_id, state: "cancelled" } } }));
if (!orders.data.some((o) => o.id === inCash.id)) throw new Error("the order is not listed");

// What the day has brought.
const days = await need("listRevenueDays", operator.GET("/revenue/days", { params: { query: { account_id } } }));
const today = days.data[0];
if (today === undefined || today.totals.sales <= 0) throw new Error(JSON.stringify(days));
const report = await need("getRevenueDay", operator.GET("/revenue/days/{date}", {
  params: { path: { date: today.date }, query: { account_id } },
}));
const paid = report.days[0]?.payments.reduce((sum, p) => sum + p.total, 0);
if (paid !== report.days[0]?.totals.total) throw new Error(JSON.stringify(report));

// Books, of which the operator has set up none and the account has none: what is asked of them is refused.
const books = await need("listBookConnections", operator.GET("/books/connections", { params: { query: { account_id } } }));
if (books.data.length !== 0) throw new Error(JSON.stringify(books));
const nobooks = { path: { id: "bkc_01m8a6b2q7w3d8h5n0t4x9zcke" } };
const noexport = { path: { ...nobooks.path, export_id: "exp_01m8a6c9v1j4r7p2s5y8b3m6fg" } };
const date = today.date;
const lines = [
  { kind: "sales" as const, vat_rate: 810, account: "200", tax: "OUTPUT2" },
  { kind: "payment" as const, method: "card" as const, account: "600" },
];
const refusals = {
  connectBooks: await operator.POST("/books/connections", { params: { query: { account_id } }, body: { product: "xero" } }),
  getBookConnection: await operator.GET("/books/connections/{id}", { params: nobooks }),
  updateBookConnection: await operator.PATCH("/books/connections/{id}", { params: nobooks, body: { send_from: date, tests: true } }),
  getBookAccounts: await operator.GET("/books/connections/{id}/accounts", { params: { ...nobooks, query: { date } } }),
  getBookMapping: await operator.GET("/books/connections/{id}/mapping", { params: { ...nobooks, query: { suggest: "true" } } }),
  confirmBookMapping: await operator.PUT("/books/connections/{id}/mapping", { params: nobooks, body: { lines } }),
  previewBookEntry: await operator.GET("/books/connections/{id}/preview/{date}", { params: { path: { ...nobooks.path, date } } }),
  listBookExports: await operator.GET("/books/connections/{id}/exports", { params: { ...nobooks, query: { state: "held" } } }),
  exportRevenueDay: await operator.POST("/books/connections/{id}/exports", {
    params: { ...nobooks, header: { "Idempotency-Key": crypto.randomUUID() } }, body: { date },
  }),
  retryBookExport: await operator.POST("/books/connections/{id}/exports/{export_id}/retry", { params: noexport, body: {} }),
  reverseBookExport: await operator.POST("/books/connections/{id}/exports/{export_id}/reverse", { params: noexport, body: { date } }),
  disconnectBooks: await operator.DELETE("/books/connections/{id}", { params: nobooks }),
};
for (const [name, { error, response }] of Object.entries(refusals)) {
  const wanted = name === "connectBooks" ? "books_not_available" : name.endsWith("BookExport") ? "export_not_found" : "books_connection_not_found";
  if (error?.code !== wanted) throw new Error(`${name}: ${response.status} ${JSON.stringify(error)}`);
  console.log(`${response.status} ${name}`);
}

// An application, to which the owner of the account agrees: pages for people are not part of the document.
const form = { headers: { "Content-Type": "application/x-www-form-urlencoded" } };
const redirect_uri = "https://planner.example.com/connected";
const app = await need("createApp", operator.POST("/apps", {
  params: { query: { account_id }, header: { "Idempotency-Key": crypto.randomUUID() } },
  body: { name: "Table Planner", home_page: "https://planner.example.com", kind: "web", redirect_uris: [redirect_uri],
    scope: "orders:read orders:write", own_scope: "orders:read" },
}));
if (!app.client_secret) throw new Error("the secret is missing");
const ofApp = { path: { id: app.id }, query: { account_id } };
const apps = await need("listApps", operator.GET("/apps", { params: { query: { account_id, limit: 10 } } }));
if (!apps.data.some((a) => a.id === app.id)) throw new Error("the application is not listed");
await need("getApp", operator.GET("/apps/{id}", { params: ofApp }));
await need("updateApp", operator.PATCH("/apps/{id}", { params: ofApp, body: { name: "Table Planner Pro" } }));
const renewed = await need("rotateAppSecret", operator.POST("/apps/{id}/rotate-secret", { params: ofApp, body: { now: false } }));
if (!renewed.client_secret || renewed.client_secret === app.client_secret) throw new Error("the secret is the same");
const signin = await need("makeSigninCode", operator.POST("/accounts/{id}/signin", { params: { path: { id: account_id } }, body: {} }));
await need("makeBooksCode", operator.POST("/books/signin", { params: { query: { account_id } }, body: {} }));
const proof = { client_id: app.id, client_secret: renewed.client_secret };
const own = await need("issueTokens, by client credentials", anyone.POST("/oauth/token", { ...form, body: { grant_type: "client_credentials", ...proof } }));
if (own.scope !== "orders:read" || own.refresh_token !== undefined) throw new Error("client credentials give something else");

const code_verifier = randomBytes(32).toString("base64url");
const back = await agree(`${env("SERVICE")}/oauth/authorize?` + new URLSearchParams({
  response_type: "code", client_id: app.id, redirect_uri, code_challenge_method: "S256",
  code_challenge: createHash("sha256").update(code_verifier).digest("base64url"),
}), signin.code);
const tokens = await need("issueTokens", anyone.POST("/oauth/token", {
  ...form, body: { grant_type: "authorization_code", code: back.searchParams.get("code") ?? "", redirect_uri, code_verifier, ...proof },
}));
const refresh_token = tokens.refresh_token;
if (!refresh_token) throw new Error("there is no refresh token");
const grants = await need("listGrants", operator.GET("/grants", { params: { query: { account_id, ended: "true" } } }));
const granted = { path: { id: grants.data[0]!.id }, query: { account_id } };
const grant = await need("getGrant", operator.GET("/grants/{id}", { params: granted }));
if (grant.app.id !== app.id || grant.scope !== tokens.scope) throw new Error(JSON.stringify(grant));
await need("issueTokens, by refresh token", anyone.POST("/oauth/token", { ...form, body: { grant_type: "refresh_token", refresh_token, ...proof } }));
await need("revokeToken", anyone.POST("/oauth/revoke", { ...form, parseAs: "text", body: { token: tokens.access_token, ...proof } }));
await need("endGrant", operator.DELETE("/grants/{id}", { params: granted }));
const ended = await anyone.POST("/oauth/token", { ...form, body: { grant_type: "refresh_token", refresh_token, ...proof } });
if (ended.error?.error !== "invalid_grant") throw new Error(JSON.stringify(ended.error));
await need("removeApp", operator.DELETE("/apps/{id}", { params: ofApp }));

// What only providers can sign.
const connection = { path: { connection: "con_01m8a5ge1k8p4z7d3v0t6m9xwc" } };
const strangers = [
  await anyone.POST("/payments/stripe/{connection}", { params: { ...connection, header: { "Stripe-Signature": "t=1,v1=00" } }, body: {} }),
  await anyone.POST("/payments/vipps/{connection}", {
    params: { ...connection, header: { Authorization: "HMAC-SHA256 SignedHeaders=x-ms-date;host;x-ms-content-sha256&Signature=AA==",
      "X-Ms-Date": "Thu, 30 Mar 2023 08:38:32 GMT", "X-Ms-Content-Sha256": "AA==" } },
    body: {},
  }),
];
for (const { error, response } of strangers) {
  if (error?.code !== "invalid_signature") throw new Error(JSON.stringify(error));
  console.log(`${response.status} a webhook of a provider`);
}

await need("eraseLeads", operator.POST("/leads/erase", { body: { email: "guest@example.com" } }));

await need("getHealth", anyone.GET("/widget/health"));
if (process.env["PROXIED"] !== "yes") await atTheRootAndWrong();

// What a proxy that compares can't pass on: it knows the base address only, and refuses wrong requests itself.
async function atTheRootAndWrong() {
  const document = await need("getOpenAPI", anyone.GET("/openapi.json"));
  await need("getOpenAPI at the root", atRoot.GET("/openapi.json"));
  if (document.openapi !== "3.1.2") throw new Error(document.openapi);
  await need("getKeys", atRoot.GET("/.well-known/jwks.json"));
  await need("getPublicKeys", atRoot.GET("/keys.pem", { parseAs: "text" }));
  const server = await need("getServerMetadata", atRoot.GET("/.well-known/oauth-authorization-server/v1"));
  const resource = await need("getResourceMetadata", atRoot.GET("/.well-known/oauth-protected-resource/v1"));
  if (server.issuer !== base || resource.authorization_servers[0] !== base) throw new Error(JSON.stringify(server));
  await need("getLiveness", atRoot.GET("/livez", { parseAs: "text" }));

  const { error } = await anyone.POST("/widget/leads", { body: { type: "newsletter", email: "nobody" } });
  if (error?.code !== "validation_failed" || error.errors?.[0]?.pointer !== "#/email") throw new Error(JSON.stringify(error));
  const gone = await atRoot.GET("/api/legacy/{path}", { params: { path: { path: "leads" } } });
  if (gone.response.headers.get("Sunset") === null) throw new Error("an old path has no Sunset");
  console.log(`${gone.response.status} getLegacy`);
}
