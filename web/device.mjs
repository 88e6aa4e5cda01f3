import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";

const { LICENSE_KEY, FINGERPRINT, PRODUCT, AUDIENCE } = process.env;
const read = (name) => readFileSync(name, "utf8");
const claims = (token) => JSON.parse(Buffer.from(token.split(".")[1], "base64url"));

// check returns what the check of a lease says, and whether the lease holds.
function check(token) {
  const run = spawnSync(process.execPath, ["lease.mjs"], { env: { ...process.env, TOKEN: token }, encoding: "utf8" });
  return { said: run.stdout.trim(), holds: run.status === 0 };
}

function save(name, text) {
  writeFileSync(`${name}.new`, text);
  renameSync(`${name}.new`, name);
}

function fail(why) {
  process.exitCode = 1;
  return why;
}

// post returns the answer of the service; {} when there was none.
async function post(call) {
  try {
    const answer = await fetch(`${AUDIENCE}/widget/license/${call}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${read("lease.jwt")}` },
      body: "{}",
      signal: AbortSignal.timeout(20_000),
    });
    return await answer.json();
  } catch {
    return {};
  }
}

const commands = {
  // Somebody carries this to the page /activate …
  request() {
    const nonce = randomBytes(16).toString("hex");
    save("lease.nonce", nonce);
    return JSON.stringify({
      license_key: LICENSE_KEY, fingerprint: FINGERPRINT, product: PRODUCT, nonce, offline: true,
    });
  },
  // … and brings the lease back, which is read here.
  take() {
    const token = readFileSync(0, "utf8").replace(/\s/g, "");
    const { said, holds } = check(token);
    if (!holds) return fail(said);
    if (claims(token).nonce !== read("lease.nonce")) return fail("it answers another request");
    if (claims(token).prd !== PRODUCT) return fail("it is for another product");
    save("lease.jwt", token);
    return "activated";
  },
  // Each time that the application starts, and once a minute while it runs.
  start() {
    const { said, holds } = check(read("lease.jwt"));
    return holds ? said : fail(said);
  },
  // Whenever there is a network. Only an answer with valid changes anything.
  async online() {
    const { valid, code, token } = await post("verify");
    if (valid === undefined) return "not known now";
    if (!valid) {
      rmSync("lease.jwt");
      return code;
    }
    // An offline lease lasts longer than those that follow it, so the one that ends last is kept.
    if (token && claims(token).exp > claims(read("lease.jwt")).exp && check(token).holds) save("lease.jwt", token);
    return "valid";
  },
  // Gives the seat back, which an offline lease keeps until it ends.
  async leave() {
    const { released, until } = await post("deactivate");
    if (!released) return until ? `kept until ${until}` : "not released";
    rmSync("lease.jwt");
    return "released";
  },
};

console.log(await commands[process.argv[2]]());
