/* SPDX-License-Identifier: Apache-2.0 */
/* arms: the settings. */
#include "policy/config/config.h"
#include "policy/route/arms/arms.h"

static void shadow_add(struct arms_rules *r, enum route_policy policy)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->shadows[i] == policy) /* `kv` is another name of one of them. */
			return;
	r->shadows[r->n++] = policy;
}

void arms_rules_fill(const struct config *cfg, struct arms_rules *out)
{
	const struct config_list *names = &cfg->router.shadow;
	*out = (struct arms_rules){.share = cfg->router.shadow_share};
	CGN_MUST(route_policy_find(cgn_str_of(config_enum_text(cfg->router.policy)), &out->live));
	for (size_t i = 0; i < names->n && out->n < ARMS_SHADOWS; i++) {
		enum route_policy policy = ROUTE_KV;
		CGN_MUST(route_policy_find(cgn_str_of(names->v[i]), &policy));
		shadow_add(out, policy);
	}
}
