/* SPDX-License-Identifier: Apache-2.0 */
/* issuer: asks an identity provider for its keys, again and again. Part of joint/who/oidc. The loop's thread. */
#pragma once
#include "joint/who/oidc/oidc.h"

struct issuer;
struct issuer_cfg {
	const char *url;           /* auth.oidc_issuer */
	const char *ca_file;       /* NULL: the system's authorities */
	void (*began)(void *user); /* Called when a round begins. */
	/* Called after each round: with the keys, or with why there are none (keys NULL). */
	void (*done)(void *user, const struct jwt_keys *keys, const char *why);
	void *user;
};
/* Begin with a round at once; copies |cfg|. CGN_INVALID: the URL or the CA file cannot be used. */
CGN_RC issuer_open(struct cgn_loop *l, const struct issuer_cfg *cfg, struct issuer **out,
	struct cgn_err *err);
/* Begin a round in |in|, unless one is under way. */
void issuer_ask(struct issuer *s, cgn_nsec in);
bool issuer_endpoints(const struct issuer *s, struct oidc_endpoints *out);
void issuer_close(struct issuer **take); /* NULL-safe. */
