// Saves what the chapter on clients gives a reader, as it stands: each block of commands as make-NAME.sh and each sample
// under the name that the chapter says, in the directory documented.
//
//	ROOT=http://127.0.0.1:8080 node documented.mjs
import { mkdirSync, writeFileSync } from "node:fs";

const page = await (await fetch(`${process.env.ROOT}/docs/clients`)).text();
const entities = { amp: "&", lt: "<", gt: ">", quot: '"', "#34": '"', "#39": "'", "#43": "+" };
const plain = (text) => text.replace(/&([a-z]+|#\d+);/g, (whole, name) => entities[name] ?? whole);
const names = { "client-curl": "client-curl.sh", "client-node": "order.ts", "client-python": "order.py", "client-go": "main.go" };
let saved = 0;
mkdirSync("documented");
for (const [, kind, name, text] of page.matchAll(/<pre class="(?:make|sample)" data-(client|sample)="([a-z-]+)"[^>]*><code>([^]*?)<\/code>/g)) {
  writeFileSync(`documented/${kind === "client" ? `make-client-${name}.sh` : names[name]}`, plain(text) + "\n");
  saved++;
}
if (saved !== 7) throw new Error(`the chapter has ${saved} blocks, want 7`);
