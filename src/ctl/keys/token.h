/* SPDX-License-Identifier: Apache-2.0 */
/* token: the rights that a token of an identity provider gives its holder by a configuration. */
#pragma once
#include "policy/who/claims/claims.h"

struct config;
/* Read the token in |file| ("-": the standard input) and judge its claims by |cfg|, at this time. Its signature is not
 * checked. CGN_INVALID: auth.oidc_issuer is not set; else as jwt_read and claims_judge. */
CGN_RC token_holder(const struct config *cfg, const char *file, struct claims_holder *out,
	struct cgn_err *err);
