// Calls every operation of the document with the client that openapi-typescript generated from it.
// The environment names the service and what .ci/clients/run has made there.
import createClient from "openapi-fetch";
import type { paths } from "./api.d.ts";

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
