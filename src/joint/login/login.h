/* SPDX-License-Identifier: Apache-2.0 */
/* login: who calls an admin port, and how often one may be wrong. A caller shows a certificate (TLS), or a key of
 * security.admin_keys_file: "Authorization: Bearer KEY", or as the password of "Basic", whose user does not count, so
 * that a browser asks for it (RFC 6750, RFC 7617). A key with a role has that role; without one, the
 * scope admin makes it an operator's, and others have the role user, which allows nothing on these ports. A key that is
 * locked or has ended is a wrong one. The loop's thread.
 *
 * Of each address (IPv6: each /64) LOGIN_WRONG wrong keys a minute are judged, and LOGIN_BURST requests at once or
 * LOGIN_REQUESTS a second are answered; addresses of this machine have no limit. 64 KiB for all buckets. */
#pragma once
#include "io/loop/loop.h"
#include "joint/access/access.h"
#include "policy/auth/auth.h"

#define LOGIN_WRONG    10
#define LOGIN_REQUESTS 100
#define LOGIN_BURST    400
#define LOGIN_MAX_FILE ((size_t)1 << 20) /* Bytes of the file of keys. */

struct login;
/* CGN_INVALID: security.admin_keys_file cannot be used. |access| lives longer. */
CGN_RC login_open(const struct config *cfg, struct access *access, struct login **out, struct cgn_err *err);
/* Read the file of |cfg| again. On failure the old keys stay. */
CGN_RC login_reload(struct login *l, const struct config *cfg, struct cgn_err *err);
void login_close(struct login **take);

/* A request shows this. */
struct login_shown {
	struct cgn_str from;              /* "host:port" or "unix" */
	struct cgn_str common_name, uris; /* The names in its certificate; empty: none. */
	struct cgn_str authorization;     /* Field of the head; empty: none. */
};
struct login_caller {
	struct principal who; /* Borrows from login_shown and |key|. */
	struct auth_key key;
	unsigned retry_s; /* CGN_OVERLOADED: seconds until the next attempt is judged. */
};
/* Find out who calls. Nothing shown: who.kind is IDENTITY_NONE; a wrong key of a caller on this machine counts as nothing,
 * as it may be for the gateway (the page's playground). CGN_UNAUTHENTICATED: the key is wrong, or the field has another
 * form; CGN_OVERLOADED: the address has been wrong, or has asked, too often. */
CGN_RC login_judge(struct login *l, const struct login_shown *shown, cgn_nsec now, struct login_caller *out,
	struct cgn_err *err);
