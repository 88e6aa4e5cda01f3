import { open, readFile, rename } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";

const file = "events.json";
const { BASE, TOKEN } = process.env;

function act(answer) {
  for (const event of answer.data) console.log(event.id, event.type); // one may come twice: know it by its id
}

async function keep(answer) {
  const next = await open(`${file}.new`, "w");
  await next.writeFile(JSON.stringify(answer));
  await next.sync();
  await next.close();
  await rename(`${file}.new`, file);
}

let answer = await readFile(file, "utf8").then(JSON.parse, () => ({ data: [], next: "start", more: true }));
act(answer); // what was kept, and perhaps not done, before the last stop
for (;;) {
  const query = new URLSearchParams({ after: answer.next, wait: answer.more ? 0 : 15 });
  const headers = { Authorization: `Bearer ${TOKEN}` };
  try {
    const response = await fetch(`${BASE}/events?${query}`, { headers, signal: AbortSignal.timeout(20_000) });
    const body = await response.json();
    if (response.ok) {
      await keep(body); // before anything is done
      act((answer = body));
      continue;
    }
    if (response.status < 429) {
      console.error(body.detail); // 410: read the lists, then begin with "next": "now"
      process.exit(1);
    }
  } catch (error) {
    console.error(String(error)); // no network
  }
  await sleep(5000);
}
