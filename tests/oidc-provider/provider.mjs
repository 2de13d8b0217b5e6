// An OpenID Connect provider for one client. Whoever comes enters an address, and has it from then on, verified.
//
//   node provider.mjs CLIENT_ID CLIENT_SECRET REDIRECT_URI      prints its issuer, and serves until its standard input ends
import { createServer } from "node:http";
import { text } from "node:stream/consumers";
import Provider from "oidc-provider";

const [client_id, client_secret, redirect_uri] = process.argv.slice(2);
const page = `<!doctype html><title>Provider</title><main><h1>Who are you?</h1>
<form method="post"><label>E-mail address <input name="login"></label> <button>Go on</button></form></main>`;

const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{ client_id, client_secret, redirect_uris: [redirect_uri] }],
    claims: { email: ["email", "email_verified"] },
    features: { devInteractions: { enabled: false } },
    pkce: { required: () => true },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, email: id, email_verified: true }) }),
    // Nobody is asked whether the client may know the address.
    async loadExistingGrant({ oidc }) {
      const grant = new oidc.provider.Grant({ clientId: oidc.client.clientId, accountId: oidc.session.accountId });
      grant.addOIDCScope("openid email");
      await grant.save();
      return grant;
    },
  });
  const answer = provider.callback();
  server.on("request", async (request, response) => {
    if (!request.url.startsWith("/interaction/")) {
      answer(request, response);
    } else if (request.method === "POST") {
      const accountId = new URLSearchParams(await text(request)).get("login");
      await provider.interactionFinished(request, response, { login: { accountId } });
    } else {
      response.setHeader("content-type", "text/html").end(page);
    }
  });
  console.log(issuer);
});
process.stdin.on("end", () => process.exit()).resume();
