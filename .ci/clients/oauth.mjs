// Walks the whole of OAuth with strict clients of others as they are: oauth4webapi, openid-client and jose.
// The environment names the service, its program and an account.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { createRemoteJWKSet, jwtVerify } from "jose";
import * as oauth from "oauth4webapi";
import * as openid from "openid-client";
import { agree, widgetd } from "./agree.mjs";

const base = process.env.BASE;
const insecure = { [oauth.allowInsecureRequests]: true }; // the service is on this machine, without TLS
const scope = "orders:read orders:write";
const web = "https://app.example/back?kept=yes";
const plain = "https://app.example/back"; // openid-client leaves a query out when it exchanges a code
const installed = "http://127.0.0.1/back";

const register = (kind, ...more) =>
  widgetd("app", "add", "Table Planner", "-kind", kind, "-home-page", "https://app.example", "-scope", scope, ...more);
const ofWeb = register("web", "-redirect-uri", `${web} ${plain}`, "-own-scope", "orders:read");
const ofBrowser = register("browser", "-redirect-uri", "https://spa.example/", "-origin", "https://spa.example");
const ofInstalled = register("installed", "-redirect-uri", installed);

// What the resource and the authorization server say of themselves.
const resource = new URL(base);
const described = await oauth.processResourceDiscoveryResponse(resource, await oauth.resourceDiscoveryRequest(resource, insecure));
const issuer = new URL(described.authorization_servers[0]);
const as = await oauth.processDiscoveryResponse(issuer, await oauth.discoveryRequest(issuer, { algorithm: "oauth2", ...insecure }));
assert.ok(as.authorization_response_iss_parameter_supported);

const jwks = createRemoteJWKSet(new URL(as.jwks_uri));
const checked = async (accessToken, app, wanted) => {
  const { payload } = await jwtVerify(accessToken, jwks, { issuer: base, audience: base, typ: "at+jwt", algorithms: ["EdDSA"] });
  assert.equal(payload.client_id, app.id);
  assert.equal(payload.scope, wanted);
  const request = new Request(`${base}/orders`, { headers: { Authorization: `Bearer ${accessToken}` } });
  const claims = await oauth.validateJwtAccessToken(as, request, base, insecure);
  assert.equal(claims.jti, payload.jti);
  return payload;
};
const calls = async (accessToken, status) => {
  const answer = await oauth.protectedResourceRequest(accessToken, "GET", new URL(`${base}/account`), undefined, undefined, insecure)
    .catch((error) => error.response ?? Promise.reject(error));
  assert.equal(answer.status, status);
  if (status === 401) assert.match(answer.headers.get("WWW-Authenticate"), /resource_metadata="[^"]+oauth-protected-resource\/v1"/);
};

// withOAuth4webapi walks code with PKCE, refresh and revocation as one kind of application.
const withOAuth4webapi = async (name, app, redirect, proof) => {
  const client = { client_id: app.id };
  const verifier = oauth.generateRandomCodeVerifier(), state = oauth.generateRandomState();
  const to = new URL(as.authorization_endpoint);
  for (const [key, value] of Object.entries({
    client_id: app.id, redirect_uri: redirect, response_type: "code", scope, state, resource: base,
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier), code_challenge_method: "S256",
  })) to.searchParams.set(key, value);
  const back = await agree(to);
  assert.ok(back.href.startsWith(redirect), back.href);
  const params = oauth.validateAuthResponse(as, client, back, state);
  const exchange = () => oauth.authorizationCodeGrantRequest(as, client, proof, params, redirect, verifier, insecure);
  const tokens = await oauth.processAuthorizationCodeResponse(as, client, await exchange());
  assert.equal((await checked(tokens.access_token, app, scope)).sub, process.env.ACCOUNT);
  await calls(tokens.access_token, 200);
  const refresh = async (token) =>
    oauth.processRefreshTokenResponse(as, client, await oauth.refreshTokenGrantRequest(as, client, proof, token, insecure));
  const next = await refresh(tokens.refresh_token);
  assert.equal((next.refresh_token ?? tokens.refresh_token) === tokens.refresh_token, app === ofWeb);
  const revoked = await oauth.revocationRequest(as, client, proof, next.refresh_token ?? tokens.refresh_token, insecure);
  await oauth.processRevocationResponse(revoked);
  await calls(next.access_token, 401);
  await calls(tokens.access_token, 401);
  await assert.rejects(refresh(next.refresh_token ?? tokens.refresh_token), { error: "invalid_grant" });
  await assert.rejects(exchange().then((r) => oauth.processAuthorizationCodeResponse(as, client, r)), { error: "invalid_grant" });
  console.log(`ok oauth4webapi: ${name}`);
};
await withOAuth4webapi("client_secret_basic", ofWeb, web, oauth.ClientSecretBasic(ofWeb.client_secret));
await withOAuth4webapi("client_secret_post", ofWeb, web, oauth.ClientSecretPost(ofWeb.client_secret));
await withOAuth4webapi("none, in a browser", ofBrowser, "https://spa.example/", oauth.None());
await withOAuth4webapi("none, installed", ofInstalled, "http://127.0.0.1:51004/back", oauth.None());

{
  const client = { client_id: ofWeb.id };
  const ask = (secret) => oauth.clientCredentialsGrantRequest(as, client, oauth.ClientSecretBasic(secret), { scope: "orders:read" }, insecure);
  const own = await oauth.processClientCredentialsResponse(as, client, await ask(ofWeb.client_secret));
  assert.equal((await checked(own.access_token, ofWeb, "orders:read")).grant, undefined);
  assert.equal(own.refresh_token, undefined);
  await assert.rejects(ask("wrong").then((r) => oauth.processClientCredentialsResponse(as, client, r)), oauth.WWWAuthenticateChallengeError);
  console.log("ok oauth4webapi: client credentials");
}

// openid-client finds out everything but the secret by itself.
{
  const config = await openid.discovery(issuer, ofWeb.id, ofWeb.client_secret, undefined,
    { algorithm: "oauth2", execute: [openid.allowInsecureRequests] });
  const pkceCodeVerifier = openid.randomPKCECodeVerifier(), expectedState = openid.randomState();
  const back = await agree(openid.buildAuthorizationUrl(config, {
    redirect_uri: plain, scope: "orders:read", state: expectedState,
    code_challenge: await openid.calculatePKCECodeChallenge(pkceCodeVerifier), code_challenge_method: "S256",
  }));
  const tokens = await openid.authorizationCodeGrant(config, back, { pkceCodeVerifier, expectedState });
  await checked(tokens.access_token, ofWeb, "orders:read");
  const next = await openid.refreshTokenGrant(config, tokens.refresh_token);
  await openid.tokenRevocation(config, next.access_token);
  await calls(next.access_token, 401);
  await calls(tokens.access_token, 200);
  const own = await openid.clientCredentialsGrant(config);
  await checked(own.access_token, ofWeb, "orders:read");
  console.log("ok openid-client");
}

// The program of /docs, as it stands there.
{
  const program = spawn(process.execPath, ["application.mjs"],
    { env: { ...process.env, CLIENT_ID: ofInstalled.id }, stdio: ["ignore", "pipe", "inherit"] });
  const printed = [];
  for await (const line of createInterface({ input: program.stdout })) {
    printed.push(line);
    const [, address] = line.match(/^Open (.*)$/) ?? [];
    if (address) assert.equal((await fetch(await agree(address))).status, 200);
  }
  assert.match(printed.slice(1).join("\n"), /^It may orders:read for 3600 seconds\.\n\{\s+data: \[.*\n200\nEnded\.$/s);
  console.log("ok the program of /docs");
}
