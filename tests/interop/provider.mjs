// SPDX-License-Identifier: Apache-2.0
// An OpenID provider: panva's oidc-provider, with its own pages to sign in. PORT: where it listens; ISSUER: its name; REDIRECT: of the client "page".
import Provider from "oidc-provider";

const { PORT, ISSUER, REDIRECT } = process.env;
const provider = new Provider(ISSUER, {
	clients: [
		{ client_id: "page", client_secret: "a secret of 32 characters, or so", redirect_uris: [REDIRECT], grant_types: ["authorization_code"], response_types: ["code"] },
		{ client_id: "robot", client_secret: "another secret of 32 characters.", redirect_uris: [], grant_types: ["client_credentials"], response_types: [] },
	],
	claims: { openid: ["sub", "roles"], profile: ["name"], email: ["email"] },
	conformIdTokenClaims: false,
	findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, name: "Ann", roles: id === "ann" ? ["viewer"] : ["operator", "user"] }) }),
	features: {
		devInteractions: { enabled: true },
		clientCredentials: { enabled: true },
		resourceIndicators: { enabled: true, defaultResource: () => "urn:cognitora", useGrantedResource: () => true,
			getResourceServerInfo: () => ({ scope: "chat", audience: "cognitora", accessTokenFormat: "jwt", accessTokenTTL: 300 }) },
	},
	pkce: { required: () => true, methods: ["S256"] },
	cookies: { keys: ["of a test"] },
});
provider.listen(Number(PORT), "127.0.0.1", () => console.log("listening"));
