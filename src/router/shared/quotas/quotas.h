/* SPDX-License-Identifier: Apache-2.0 */
/* quotas: the holdings of each tenant in the supplies that a router's tenants share (policy/who/quota). One lock, held for a
 * look-up. Any thread. */
#pragma once
#include "policy/who/quota/quota.h"

struct telemetry;

struct gw_quotas;
struct gw_quotas *gw_quotas_open(struct telemetry *t);
void gw_quotas_close(struct gw_quotas **take); /* NULL-safe; nothing is held. */

/* A tenant, as it takes something. */
struct gw_quota_taker {
	struct quota_holder holder;
	bool alone; /* Clients show no keys, so there is one tenant: it may have all. */
};
/* Take |n| of a supply of |size|. False: it is refused. */
bool gw_quotas_take(struct gw_quotas *q, const struct gw_quota_taker *who, uint64_t n, uint64_t size,
	struct quota_told *told);
/* Take one of a supply of which |free| are free, as the caller knows. */
bool gw_quotas_take_free(struct gw_quotas *q, const struct gw_quota_taker *who, uint64_t free,
	struct quota_told *told);
/* Would gw_quotas_take_free grant it? */
bool gw_quotas_may(struct gw_quotas *q, const struct gw_quota_taker *who, uint64_t free,
	struct quota_told *told);
/* Take one that gw_quotas_may has granted. */
void gw_quotas_add(struct gw_quotas *q, const struct quota_holder *h);
void gw_quotas_give(struct gw_quotas *q, const struct quota_holder *h, uint64_t n);

/* Count a refusal in the metrics, and write why: "team-a holds 32 of its 32 requests for files and batches". */
#define GW_QUOTA_TEXT 260
void gw_quotas_refused(struct gw_quotas *q, const struct quota_holder *h, const struct quota_told *told,
	char text[GW_QUOTA_TEXT]);

/* Return the holdings of |tenant| in |kind|, and its limit by the size of the supply at the last question; limit 0: there was none. */
struct quota_told gw_quotas_of(struct gw_quotas *q, enum quota_kind kind, struct cgn_str tenant);
/* As quota_tenants. */
size_t gw_quotas_tenants(struct gw_quotas *q, struct quota_name_of *out, size_t max);
/* Once a second: set the gauges of each supply. */
void gw_quotas_report(struct gw_quotas *q);
