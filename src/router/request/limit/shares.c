/* SPDX-License-Identifier: Apache-2.0 */
#include "router/request/limit/shares.h"

struct gw_quota_taker gw_share_taker(const struct gw_req *r, enum quota_kind kind, uint64_t of)
{
	struct cgn_str tenant = gw_identity_label(&r->identity);
	bool keyless = cgn_str_is(tenant, AUTH_NO_TENANT) && r->client.from.peer == NULL;
	return (struct gw_quota_taker){{kind, tenant, of}, keyless || r->identity.own};
}

enum gw_step gw_share_refuse(struct gw_req *r, const struct quota_holder *h, const struct quota_told *told,
	unsigned retry_after)
{
	char why[GW_QUOTA_TEXT];
	gw_quotas_refused(r->w->shared->quotas, h, told, why);
	return gw_refuse(r,
		&(struct gw_refusal){429, "requests", "tenant_share", .reason = "share", .by = GW_BY_SHARE,
			.retry_after = retry_after},
		"%s: the rest is for other tenants", why);
}
