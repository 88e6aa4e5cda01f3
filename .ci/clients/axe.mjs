// Looks for what WCAG 2.2 AA and good practice forbid, with axe-core in Chromium, on the demo's pages, on the
// service's pages, on those that owners of accounts agree on and on their accountants': on a telephone in light and on
// a desk in dark.
// (Those that guests pay on are judged by a test in Go, which makes each of their states.) It prints a line for each
// page, and what is wrong with it; then it exits with 1. DEMO and ROOT are the addresses of the demo's page and of its
// service, OFFLINE is what its till without a network asks:
//
//	DEMO=http://127.0.0.1:8081/ ROOT=http://127.0.0.1:8080 OFFLINE='{"license_key":…}' node axe.mjs
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const { DEMO, ROOT, OFFLINE } = process.env;
if (!DEMO || !ROOT || !OFFLINE) throw new Error("DEMO, ROOT and OFFLINE must be set");
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const profile = mkdtempSync(join(tmpdir(), "axe-"));

// start starts the driver of Chromium and returns its address.
const driver = spawn("chromedriver", ["--port=0"], { stdio: ["ignore", "pipe", "inherit"] });
const startDriver = async () => {
  for await (const line of createInterface({ input: driver.stdout })) {
    const found = line.match(/started successfully on port (\d+)/);
    if (found) return `http://127.0.0.1:${found[1]}`;
  }
  throw new Error("chromedriver does not start");
};

// call sends a command of WebDriver and returns its value.
const call = async (method, url, body) => {
  const answer = await fetch(url, { method, body: body && JSON.stringify(body) });
  const { value } = await answer.json();
  if (!answer.ok) throw new Error(`${method} ${url}: ${value.message}`);
  return value;
};

// The page with what a person sees after a mistake.
const mistake = `const done = arguments[0], form = document.querySelector("form[data-widget-lead]");
  form.elements.email.value = "guest@example";
  form.querySelector("button").click();
  new MutationObserver(() => form.querySelector("[aria-invalid]") && done()).observe(form, { subtree: true, attributes: true });`;

const wcag = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const pages = [
  { name: "demo, orders", url: DEMO + "orders" },
  { name: "demo, revenue", url: DEMO + "revenue" },
  { name: "demo", url: DEMO },
  { name: "demo, wrong address", url: DEMO, script: mistake },
  { name: "home", url: ROOT + "/" },
  { name: "demo, an application", url: DEMO + "connect", least: 5 },
  { name: "sign in", url: ROOT + "/v1/oauth/signin" },
  { name: "sign in, not right", url: ROOT + "/v1/oauth/signin", steps: async () => {
    await signIn("0000-0000-0000");
    await element("[aria-invalid]");
  } },
  { name: "activate", url: ROOT + "/v1/activate" },
  { name: "activate, not right", url: ROOT + "/v1/activate", steps: () => activate("{}") },
  { name: "activated", url: ROOT + "/v1/activate", steps: () => activate(OFFLINE) },
  { name: "an application that is not known", url: ROOT + "/v1/oauth/authorize", least: 5 },
];
const start = await (await fetch(ROOT + "/docs")).text();
const chapters = [...new Set(["/docs", ...[...start.matchAll(/<a href="(\/docs\/[^"#]+)"/g)].map((found) => found[1])])];
if (chapters.length < 25) throw new Error(`found ${chapters.length} chapters only`);
for (const path of chapters) pages.push({ name: path, url: ROOT + path });
pages.push({ name: "/docs, something found", url: ROOT + "/docs", script: `const done = arguments[0], find = document.querySelector("#find");
  find.value = "order"; find.dispatchEvent(new Event("input")); done();` });
pages.push({ name: "an address that does not exist", url: ROOT + "/nowhere" }, { name: "the same at the demo", url: DEMO + "nowhere" });
let wrong = 0, element, signIn, activate;
try {
  const base = await startDriver();
  const args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", `--user-data-dir=${profile}`];
  const { sessionId } = await call("POST", `${base}/session`, { capabilities: { alwaysMatch: {
    browserName: "chrome", "goog:chromeOptions": { args }, timeouts: { script: 60_000, implicit: 10_000 } } } });
  const session = `${base}/session/${sessionId}`;
  const emulate = (cmd, params) => call("POST", `${session}/goog/cdp/execute`, { cmd, params });
  const run = (script) => call("POST", `${session}/execute/async`, { script, args: [] });
  const open = (url) => call("POST", `${session}/url`, { url });
  element = async (css) => {
    const found = await call("POST", `${session}/element`, { using: "css selector", value: css });
    return `${session}/element/${Object.values(found)[0]}`;
  };
  const press = async (css) => call("POST", `${await element(css)}/click`, {});
  signIn = async (code) => {
    await call("POST", `${await element("#code")}/value`, { text: code });
    await press("form.card button");
  };

  activate = async (request) => {
    await call("POST", `${await element("#request")}/value`, { text: request });
    await press("form.card button");
    await element(request === OFFLINE ? "#lease" : "#notice");
  };

  // The demo's application asks the owner of the account, who signs in for it once.
  const connect = async () => {
    await press("form button");
    const code = await call("GET", `${await element(".code")}/text`);
    await press("a.button");
    return code;
  };
  await open(DEMO + "connect");
  await signIn(await connect());
  await element("[value=allow]");
  pages.push(
    { name: "consent", url: await call("GET", `${session}/url`) },
    { name: "demo, a code", url: DEMO + "connect", least: 5, steps: async () => {
      await press("form button");
      await element(".code");
    } },
    { name: "demo, connected", url: DEMO + "connect", steps: async () => {
      await connect();
      await press("[value=allow]");
      await element("#claims");
    } },
    { name: "connected applications", url: ROOT + "/v1/oauth/connected" },
  );

  // The demo's page signs the restaurant's accountant in, until the last of hers.
  const books = ROOT + "/v1/books", alerted = async () => {
    await press("button.button");
    await element("[role=alert]");
  };
  const set = (css, value) => run(`document.querySelector("${css}").value = "${value}"; arguments[0]();`);
  pages.push(
    { name: "books, connections", url: DEMO + "revenue", steps: async () => {
      await press("form[action='/books'] button");
      await element("section");
    } },
    { name: "books, mapping", url: books + "/mapping/fortnox" },
    { name: "books, a wrong account", url: books + "/mapping/fortnox", steps: async () => {
      await set("[name^=account-]", "9998");
      await alerted();
      await element("[aria-invalid]");
    } },
    { name: "books, changed meanwhile", url: books + "/mapping/fortnox", steps: async () => {
      await set("[name=shown]", "x");
      await alerted();
    } },
    { name: "books, a day", url: books + "/day/fortnox", steps: () => element("tfoot") },
    { name: "books, a day that is ahead", url: books + "/day/fortnox?date=2999-12-31" },
    { name: "books, sending", url: books + "/sending/fortnox" },
    { name: "books, sending from no day", url: books + "/sending/fortnox", steps: async () => {
      await press("[name=send][value=yes]");
      await set("#send_from", "");
      await alerted();
    } },
    { name: "books, not connected", url: books + "/callback/fortnox?state=x&code=x", least: 5 },
    { name: "books, sign in", url: books, steps: async () => {
      await press("form[action$=signout] button");
      await element("#code");
    } },
  );
  for (const [scheme, width] of [["light", 360], ["dark", 1280]]) {
    await emulate("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
    await emulate("Emulation.setDeviceMetricsOverride", { width, height: 900, deviceScaleFactor: 1, mobile: false });
    for (const { name, url, steps, script, least = 10 } of pages) {
      await open(url);
      if (steps) await steps();
      if (script) await run(script);
      const { passes, violations } = await run(`const done = arguments[0]; ${axe};
        axe.run({ runOnly: ${JSON.stringify([...wcag, "best-practice"])} })
          .then(({ passes, violations }) => done({ passes: passes.length, violations }), (e) => done({ passes: 0, violations: [{ id: String(e), nodes: [] }] }));`);
      console.log(`${name}, ${scheme}, ${width} wide: ${passes} rules hold, ${violations.length} don't`);
      for (const v of violations) {
        console.log(`  ${v.id}: ${v.help}`);
        for (const node of v.nodes) console.log(`    ${node.target.join(" ")}: ${node.failureSummary.replaceAll("\n", " ")}`);
      }
      wrong += violations.length + (passes < least); // fewer rules: the page is not what was meant
    }
  }
  await call("DELETE", session);
} finally {
  driver.kill();
  rmSync(profile, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
}
process.exitCode = wrong ? 1 : 0;
