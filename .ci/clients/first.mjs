// Walks the ways of the start page of the documentation as somebody who has a demo, a shell and nothing else: it takes
// every command from the page, runs those of each way in one shell, looks whether they reach what they are for, and
// counts them. A block of lines is one command; the one that sets the token counts, too.
//
//	ROOT=http://127.0.0.1:8080 node first.mjs
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const { ROOT } = process.env;
if (!ROOT) throw new Error("ROOT must be set");
const page = await (await fetch(`${ROOT}/docs`)).text();
const entities = { amp: "&", lt: "<", gt: ">", quot: '"', "#34": '"', "#39": "'", "#43": "+" };
const blocks = (pattern) => [...page.matchAll(new RegExp(`<pre class="${pattern}"[^>]*><code>([^]*?)</code></pre>`, "g"))]
  .map((found) => found[1].replace(/&([a-z]+|#\d+);/g, (whole, name) => entities[name] ?? whole));
const [token] = blocks("set");

// until is what the last command prints in the end; a way that has to wait asks again with its last command.
const ways = {
  call: { most: 3, name: "call", until: /"status": ?"pass"/ },
  webhook: { most: 6, name: "webhook", until: /webhook\.test/, after: "\nsleep 1\nkill %1" },
  order: { most: 8, name: "paid order", until: /"state": "paid"/ },
  oauth: { most: 8, name: "OAuth token", until: /"access_token":"eyJ/ },
};
let wrong = 0;
for (const [path, { most, name, until, after = "" }] of Object.entries(ways)) {
  let commands = blocks(`(?:curl )?step" data-path="${path}`);
  if (commands.some((command) => command.includes("$TOKEN"))) commands = [token, ...commands];
  const dir = mkdtempSync(join(tmpdir(), "first-"));
  const last = commands.at(-1);
  const again = path === "order" ? `\nfor i in 1 2 3 4 5 6 7 8 9 10; do sleep 1\n${last}\ndone` : "";
  const shell = commands.join("\n").replaceAll(/ &$/gm, " &\nsleep 1"); // as long as somebody takes to paste the next
  try {
    const printed = execFileSync("bash", ["-c", `set -m\n${shell}${again}${after}`], { cwd: dir, encoding: "utf8", timeout: 60_000, stdio: ["ignore", "pipe", "pipe"] });
    if (!until.test(printed)) throw new Error(`it prints ${printed}`);
    console.log(`the first ${name}: ${commands.length} commands`);
    wrong += commands.length > most;
  } catch (error) {
    console.log(`the first ${name}: ${error.message}\n${error.stdout ?? ""}${error.stderr ?? ""}`);
    wrong++;
  }
  rmSync(dir, { recursive: true });
}
process.exitCode = wrong ? 1 : 0;
