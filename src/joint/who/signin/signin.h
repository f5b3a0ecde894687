/* SPDX-License-Identifier: Apache-2.0 */
/* signin: people sign in to the page of an admin port at the identity provider, by an authorization code with PKCE
 * (OpenID Connect Core 1.0, 3.1; RFC 7636). The loop's thread.
 *
 * Before a person has signed in nothing is stored here: what the answer is checked by (state, nonce, verifier) is derived
 * from a random cookie and a secret of this process. There are at most SIGNIN_SESSIONS sessions, of which a person has a
 * share (policy/who/quota): beyond it the person's own session that ends first is ended. Where all are taken by others, the
 * one that ends first of those who have several is ended. 1.5 KiB each. Sessions end with the process, and when the settings are loaded again,
 * because roles may have changed; a browser that is still signed in at the provider gets a new one without a question. */
#pragma once
#include "joint/who/oidc/oidc.h"

#define SIGNIN_SESSIONS   1024
#define SIGNIN_EXCHANGES  16 /* Codes that are being exchanged at once. */
#define SIGNIN_CODE_MAX   4096
#define SIGNIN_COOKIE_MAX 300
#define SIGNIN_COOKIE     "cgn_session"
#define SIGNIN_COOKIE_WAY "cgn_signin" /* On the way to the provider and back. */
#define SIGNIN_MAX_SECRET ((size_t)4096)

struct signin;
/* |cfg| has auth.oidc_client_id; |oidc| lives longer. CGN_INVALID: the file of the client's secret cannot be used. */
CGN_RC signin_open(struct cgn_loop *l, struct oidc *oidc, const struct config *cfg, struct signin **out,
	struct cgn_err *err);
void signin_close(struct signin **take); /* NULL-safe. Exchanges end with CGN_UNAVAILABLE. */

/* The address of /login, as browsers use it: auth.oidc_redirect_url without its end. Borrowed. */
struct cgn_str signin_url(const struct signin *s);

/* Begin: append the address where the browser goes, and the value of the field Set-Cookie. CGN_UNAVAILABLE: the
 * provider has not been reached yet, or has no page to sign in. */
CGN_RC signin_begin(struct signin *s, struct cgn_buf *location, char cookie[SIGNIN_COOKIE_MAX],
	struct cgn_err *err);

/* The browser is back. |query| is that of auth.oidc_redirect_url, |way| the cookie SIGNIN_COOKIE_WAY. */
struct signin_exchange;
/* |rc| fine: |holder| is signed in, and |cookie| is the value of the field Set-Cookie that tells the browser. */
typedef void signin_done(void *user, cgn_rc rc, const struct claims_holder *holder, const char *cookie,
	const struct cgn_err *err);
/* Exchange the code. |done| is called once, never inline. CGN_UNAUTHENTICATED: the answer does not belong to this browser,
 * or the provider has refused; CGN_OVERLOADED; CGN_UNAVAILABLE. */
CGN_RC signin_finish(struct signin *s, struct cgn_str query, struct cgn_str way, signin_done *done,
	void *user, struct signin_exchange **out, struct cgn_err *err);
void signin_cancel(struct signin_exchange **take); /* |done| is not called. NULL-safe. */

/* Find the person who is signed in with this value of the cookie SIGNIN_COOKIE; false: there is none. */
bool signin_find(const struct signin *s, struct cgn_str session, struct claims_holder *out);
/* End the session; |cookie| is the value of the field Set-Cookie that makes the browser forget it. */
void signin_end(struct signin *s, struct cgn_str session, char cookie[SIGNIN_COOKIE_MAX]);
