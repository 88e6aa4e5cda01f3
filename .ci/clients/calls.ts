// Calls every operation of the document with the client that openapi-typescript generated from it.
// The environment names the service and what .ci/clients/run has made there.
import createClient from "openapi-fetch";
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

await need("eraseLeads", operator.POST("/leads/erase", { body: { email: "guest@example.com" } }));

await need("getHealth", anyone.GET("/widget/health"));
if (process.env["PROXIED"] !== "yes") await atTheRootAndWrong();

// What a proxy that compares can't pass on: it knows the base address only, and refuses wrong requests itself.
async function atTheRootAndWrong() {
  const document = await need("getOpenAPI", anyone.GET("/openapi.json"));
  await need("getOpenAPI at the root", atRoot.GET("/openapi.json"));
  if (document.openapi !== "3.1.2") throw new Error(document.openapi);
  await need("getKeys", atRoot.GET("/.well-known/jwks.json"));
  await need("getLiveness", atRoot.GET("/livez", { parseAs: "text" }));

  const { error } = await anyone.POST("/widget/leads", { body: { type: "newsletter", email: "nobody" } });
  if (error?.code !== "validation_failed" || error.errors?.[0]?.pointer !== "#/email") throw new Error(JSON.stringify(error));
  const gone = await atRoot.GET("/api/legacy/{path}", { params: { path: { path: "leads" } } });
  if (gone.response.headers.get("Sunset") === null) throw new Error("an old path has no Sunset");
  console.log(`${gone.response.status} getLegacy`);
}
