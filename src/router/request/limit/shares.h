/* SPDX-License-Identifier: Apache-2.0 */
/* shares: a request's part of what its tenant may hold (router/shared/quotas). */
#pragma once
#include "router/request/request/request.h"
#include "router/shared/quotas/quotas.h"

/* Return the request's tenant as a holder of |kind|. Borrows the tenant's name. The router's own requests, and those of
 * clients without keys, have no limit. */
struct gw_quota_taker gw_share_taker(const struct gw_req *r, enum quota_kind kind, uint64_t of);
/* Refuse the request with 429, in the words of the share that its tenant holds. |retry_after|: seconds. */
enum gw_step gw_share_refuse(struct gw_req *r, const struct quota_holder *h, const struct quota_told *told,
	unsigned retry_after);
