// An installed application from beginning to end: it asks the owner of an account, calls the service for her,
// goes on with its refresh token, and ends what she agreed to.
import { once } from "node:events";
import { createServer } from "node:http";
import * as oauth from "oauth4webapi";

const { BASE, CLIENT_ID, CLIENT_SECRET } = process.env; // no secret: it proves itself by PKCE alone
const issuer = new URL(BASE);
const options = { [oauth.allowInsecureRequests]: issuer.protocol === "http:" }; // for a demo on this machine
const client = { client_id: CLIENT_ID };
const proof = CLIENT_SECRET ? oauth.ClientSecretBasic(CLIENT_SECRET) : oauth.None();

// Where everything is (RFC 8414).
const found = await oauth.discoveryRequest(issuer, { algorithm: "oauth2", ...options });
const service = await oauth.processDiscoveryResponse(issuer, found);

// Send the owner there, and wait for her browser to come back.
const listener = createServer().listen(0, "127.0.0.1");
await once(listener, "listening");
const redirect = `http://127.0.0.1:${listener.address().port}/back`;
const verifier = oauth.generateRandomCodeVerifier(); // both are for this one time only
const state = oauth.generateRandomState();
const address = new URL(service.authorization_endpoint);
address.search = new URLSearchParams({
  client_id: CLIENT_ID,
  redirect_uri: redirect,
  response_type: "code",
  scope: "orders:read",
  state,
  code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
  code_challenge_method: "S256",
});
console.log(`Open ${address}`);
const [request, answer] = await once(listener, "request");
answer.end("You can close this window.");
listener.close();

// It throws when she said no, when state is another one, or when iss names another service (RFC 9207).
const params = oauth.validateAuthResponse(service, client, new URL(request.url, redirect), state);
const tokens = await oauth.processAuthorizationCodeResponse(service, client,
  await oauth.authorizationCodeGrantRequest(service, client, proof, params, redirect, verifier, options));
console.log(`It may ${tokens.scope} for ${tokens.expires_in} seconds.`); // she may have taken scopes out

const orders = (token) => oauth.protectedResourceRequest(token, "GET", new URL(`${BASE}/orders`), undefined, undefined, options);
console.log(await (await orders(tokens.access_token)).json());

// An hour later. Keep what comes back: the refresh token of a public application is replaced at each use.
const next = await oauth.processRefreshTokenResponse(service, client,
  await oauth.refreshTokenGrantRequest(service, client, proof, tokens.refresh_token, options));
console.log((await orders(next.access_token)).status);

// The end: no token works any more.
await oauth.processRevocationResponse(
  await oauth.revocationRequest(service, client, proof, next.refresh_token ?? tokens.refresh_token, options));
console.log("Ended.");
