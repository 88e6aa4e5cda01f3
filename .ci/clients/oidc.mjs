// An authorisation server of somebody else's making (oidc-provider), with the paths of Xero. Who comes is
// logged in and agrees to everything. Refresh tokens are replaced at each use, and one that is used again ends
// all of its consent. It prints its address and runs until it is killed. CLIENT_ID, CLIENT_SECRET, REDIRECT_URI
// and SCOPE are those of its one client.
import { createServer } from "node:http";
import Provider from "oidc-provider";

const { CLIENT_ID, CLIENT_SECRET, REDIRECT_URI, SCOPE } = process.env;
if (!CLIENT_ID || !CLIENT_SECRET || !REDIRECT_URI || !SCOPE) throw new Error("a variable is missing");
const server = createServer();
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const address = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(address, {
  clients: [{
    client_id: CLIENT_ID, client_secret: CLIENT_SECRET, redirect_uris: [REDIRECT_URI], response_types: ["code"],
    grant_types: ["authorization_code", "refresh_token"], token_endpoint_auth_method: "client_secret_basic",
  }],
  scopes: SCOPE.split(" "),
  pkce: { required: () => true },
  routes: { authorization: "/identity/connect/authorize", token: "/connect/token" },
  features: { devInteractions: { enabled: false } },
  interactions: { url: (_, { uid }) => `/agree/${uid}` },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  issueRefreshToken: () => true,
  rotateRefreshToken: true,
  ttl: { AccessToken: 1800, RefreshToken: 60 * 86400, AuthorizationCode: 60, Grant: 60 * 86400, Interaction: 600, Session: 600 },
  cookies: { keys: ["only for tests"] },
});

// agree answers what the provider wants to know of the person.
const agree = async (request, answer) => {
  const { prompt, params, session } = await provider.interactionDetails(request, answer);
  if (prompt.name === "login") return provider.interactionFinished(request, answer, { login: { accountId: "owner" } });
  const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope(params.scope);
  const consent = { grantId: await grant.save() };
  return provider.interactionFinished(request, answer, { consent }, { mergeWithLastSubmission: true });
};
const callback = provider.callback();
server.on("request", (request, answer) => {
  if (!request.url.startsWith("/agree/")) return callback(request, answer);
  agree(request, answer).catch((error) => answer.writeHead(500).end(String(error)));
});
console.log(`listening at ${address}`);
