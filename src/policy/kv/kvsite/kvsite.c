/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv/kvsite/kvsite.h"

static bool any_matches(const char *const *patterns, size_t n, struct cgn_str s)
{
	for (size_t i = 0; i < n && s.n > 0; i++)
		if (cgn_str_is(s, patterns[i]) || cgn_str_glob(cgn_str_of(patterns[i]), s))
			return true;
	return false;
}

uint16_t kvsites_of_tenant(const struct kvsites *sites, struct cgn_str tenant)
{
	unsigned bits = 0;
	for (size_t i = 0; sites != NULL && i < sites->n; i++)
		if (any_matches(sites->v[i].tenants, sites->v[i].n_tenants, tenant))
			bits |= 1U << i;
	return (uint16_t)bits;
}

bool kvsite_takes_model(const struct kvsite *s, struct cgn_str model)
{
	return any_matches(s->models, s->n_models, model);
}

struct block_leave kvsites_judge(const struct kvsites *sites, struct cgn_str tenant, struct cgn_str model)
{
	const uint16_t takes = kvsites_of_tenant(sites, tenant);
	unsigned may = 0;
	for (size_t i = 0; takes != 0 && i < sites->n; i++)
		if ((takes & 1U << i) != 0 && kvsite_takes_model(&sites->v[i], model))
			may |= 1U << i;
	return (struct block_leave){.may = (uint16_t)may,
		.barred = (uint16_t)(takes & ~may),
		.owned = tenant.n > 0};
}

enum kvsite_why kvsite_why(struct block_leave leave, unsigned site)
{
	const unsigned bit = 1U << site;
	if ((leave.may & bit) != 0)
		return KVSITE_MAY;
	if (!leave.owned)
		return KVSITE_NO_TENANT;
	return (leave.barred & bit) != 0 ? KVSITE_MODEL : KVSITE_TENANT;
}

const char *kvsite_why_text(enum kvsite_why why)
{
	static const char *const texts[] = {[KVSITE_MAY] = "may leave",
		[KVSITE_NO_TENANT] = "no tenant",
		[KVSITE_TENANT] = "tenant",
		[KVSITE_MODEL] = "model"};
	return texts[why];
}
