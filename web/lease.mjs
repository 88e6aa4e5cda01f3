import { createHash, createPublicKey, verify } from "node:crypto";
import { readFileSync, renameSync, writeFileSync } from "node:fs";

const { TOKEN, FINGERPRINT, AUDIENCE } = process.env;
const sha256 = (text) => createHash("sha256").update(text).digest("base64url");
const decode = (part) => Buffer.from(part, "base64url");

// The pinned keys, by their thumbprints (RFC 7638).
const keys = new Map();
for (const pem of readFileSync("public.pem", "utf8").match(/-----BEGIN[^]*?-----END[^\n]*/g)) {
  const key = createPublicKey(pem);
  const { crv, kty, x } = key.export({ format: "jwk" });
  keys.set(sha256(JSON.stringify({ crv, kty, x })), key);
}

// The mark, in Unix seconds. It grows with the monotonic clock, and to the signed iat of a token.
let mark = 0;
let seen = performance.now();
try {
  mark = Number(readFileSync("lease.mark", "utf8"));
} catch {} // the first time there is none

function grow(iat = 0) {
  mark = Math.max(mark + (performance.now() - seen) / 1000, iat);
  seen = performance.now();
  writeFileSync("lease.mark.new", `${Math.floor(mark)}\n`);
  renameSync("lease.mark.new", "lease.mark");
}

// fault returns why a lease does not hold, or null when it holds.
function fault(token) {
  const [header, payload, signature = ""] = token.split(".");
  let kid, typ;
  try {
    ({ kid, typ } = JSON.parse(decode(header)));
  } catch {
    return "it is damaged";
  }
  const key = keys.get(kid);
  if (!key) return "it names a key that is not pinned";
  if (!verify(null, Buffer.from(`${header}.${payload}`), key, decode(signature))) return "its signature is wrong";
  const { iat, exp, aud, fph } = JSON.parse(decode(payload));
  grow(iat);
  if (typ !== "at+jwt") return "it is another kind of token";
  if (aud !== AUDIENCE) return "it is of another service";
  if (fph !== sha256(FINGERPRINT)) return "it is of another device";
  if (exp <= Math.max(Date.now() / 1000, mark)) return "it has ended";
  return null;
}

// An application that goes on running asks again, and calls grow(), once a minute.
const why = fault(TOKEN);
console.log(why ? `the lease does not hold: ${why}` : "the lease holds");
process.exitCode = why ? 1 : 0;
