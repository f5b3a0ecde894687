/* SPDX-License-Identifier: Apache-2.0 */
/* isolate: keeps what engines computed for one tenant from the others (security.isolation). The tenant's salt takes the
 * place of the body's "cache_salt" in the digests of the prompt, and in the body for engines that keep salts apart. */
#pragma once
#include "router/request/request/request.h"

/* Set the salts of r->prompt, and take the client's own salt, which is part of them, out of the body. Done once for a
 * body. Nothing happens where tenants share caches. False: out of memory. */
bool gw_isolate(struct gw_req *r);
/* Return true if the request may not go to |m|, which may be NULL: an engine that is ready for it cannot keep tenants
 * apart, and security.isolation_strict is set. */
bool gw_isolation_leaks(const struct gw_req *r, const struct view_model *m);
/* Return the text for the place of the model's name in a body for the node in |slot|, which is one of
 * m->ready: |name|, a JSON string, with the member "cache_salt" behind it if the node's engine takes one, in
 * r->arena. Without memory the name is empty: an engine refuses it, and nothing is shared. */
struct cgn_str gw_isolation_name(struct gw_req *r, const struct view_model *m, uint16_t slot,
	struct cgn_str name);
/* Return the text under which the answer |id| of the request's tenant is remembered, in r->arena; empty: out of memory
 * and remembered nowhere. */
struct cgn_str gw_isolation_id(struct gw_req *r, struct cgn_str id);
