/* SPDX-License-Identifier: Apache-2.0 */
/* hooks: the settings of the external checks, as workers read them. */
#pragma once
#include "base/core/arena.h"
#include "base/core/err.h"
#include "policy/config/config.h"

struct tls_ctx;

enum gw_hook_kind { GW_HOOK_BEFORE, GW_HOOK_AFTER, GW_HOOKS };

struct gw_hook_rules {
	const char *url[GW_HOOKS]; /* In the arena of the rules; NULL: this one is not asked. */
	struct tls_ctx *tls;       /* Owned; NULL: no URL is https. */
	cgn_nsec timeout;
	bool pass;      /* A request or answer passes when its hook has failed. */
	bool send_body; /* The question before has the request's body. */
	uint64_t max_body, window;
};
/* Fill |*out|, which is empty; reads hooks.ca_file. CGN_INVALID and CGN_TLS name the setting. gw_hook_rules_fini is
 * needed in any case. */
CGN_RC gw_hook_rules_fill(const struct config *cfg, struct cgn_arena *arena, struct gw_hook_rules *out,
	struct cgn_err *err);
void gw_hook_rules_fini(struct gw_hook_rules *h);
/* As gw_hook_rules_fill, but drop the result. */
CGN_RC gw_hook_rules_check(const struct config *cfg, struct cgn_err *err);
