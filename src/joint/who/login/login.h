/* SPDX-License-Identifier: Apache-2.0 */
/* login: identifies the caller of an admin port, and limits wrong keys. A caller shows one of: a certificate
 * (TLS); a key of security.admin_keys_file, as "Authorization: Bearer KEY" or as the password of "Basic",
 * whose user is ignored, so that a browser asks for it (RFC 6750, RFC 7617); a token of the identity
 * provider, in the place of the key; the cookie of a person who is signed in (joint/who/signin). A key with a
 * role has that role; without one, the scope admin makes it an operator's, and others have the role user,
 * which allows nothing on these ports. A key that is locked or has expired counts as wrong. The loop's
 * thread.
 *
 * For each address (IPv6: each /64) LOGIN_WRONG wrong keys a minute are judged, and LOGIN_BURST requests at
 * once or LOGIN_REQUESTS a second are answered; addresses of this machine have no limit. 64 KiB for all
 * buckets. */
#pragma once
#include "io/os/loop/loop.h"
#include "joint/who/access/access.h"
#include "joint/who/signin/signin.h"
#include "policy/who/auth/auth.h"

#define LOGIN_WRONG    10
#define LOGIN_REQUESTS 100
#define LOGIN_BURST    400
#define LOGIN_MAX_FILE ((size_t)1 << 20) /* Bytes of the file of keys. */

struct login;
/* CGN_INVALID: security.admin_keys_file cannot be used. |access| and |oidc| live longer; |oidc| NULL: tokens of an
 * identity provider are not taken. */
CGN_RC login_open(struct cgn_loop *loop, const struct config *cfg, struct access *access, struct oidc *oidc,
	struct login **out, struct cgn_err *err);
/* Read the files of |cfg| again; who is signed in must sign in again. On failure the old keys and settings stay. */
CGN_RC login_reload(struct login *l, const struct config *cfg, struct oidc *oidc, struct cgn_err *err);
void login_close(struct login **take);

/* A request shows this. */
struct login_shown {
	struct cgn_str from;              /* "host:port" or "unix" */
	struct cgn_str common_name, uris; /* The names in its certificate; empty: none. */
	struct cgn_str authorization;     /* Field of the head; empty: none. */
	struct cgn_str session;           /* Cookie SIGNIN_COOKIE; empty: none. */
};
struct login_caller {
	struct principal who; /* Borrows from login_shown, |key| and |holder|. */
	struct auth_key key;
	struct claims_holder holder;
	unsigned retry_s; /* CGN_OVERLOADED: seconds until the next attempt is judged. */
};
/* Find out who calls. Nothing shown: who.kind is IDENTITY_NONE; a wrong key of a caller on this machine counts as nothing,
 * as it may be for the gateway (the page's playground). CGN_UNAUTHENTICATED: the key is wrong, or the field has another
 * form; CGN_FORBIDDEN: the token gives no role; CGN_UNAVAILABLE: the identity provider's keys are not known now;
 * CGN_OVERLOADED: the address has been wrong, or has asked, too often. */
CGN_RC login_judge(struct login *l, const struct login_shown *shown, cgn_nsec now, struct login_caller *out,
	struct cgn_err *err);
/* Where people sign in; NULL: they cannot (auth.oidc_client_id). Not to be kept: login_reload makes another. */
struct signin *login_signin(struct login *l);
/* Count an attempt to sign in from that address. False: too many have failed, and |*retry_s| says when to try again.
 * After a success login_right takes the attempt back. */
bool login_may_try(struct login *l, struct cgn_str from, cgn_nsec now, unsigned *retry_s);
void login_right(struct login *l, struct cgn_str from, cgn_nsec now);
