/* SPDX-License-Identifier: Apache-2.0 */
/* account: what is counted, learned and logged of a request. Prompts, answers and keys are in none of it. */
#pragma once
#include "router/request/request.h"

void gw_account_open(struct gw_worker *w);
void gw_account_close(struct gw_worker *w);
/* Find the usage in the bytes that were relayed, count it, and learn from it what nodes hold. Call once, before
 * gw_account_end. */
void gw_account_usage(struct gw_req *r);
/* tenants.c: count what the request's tenant used. Call once, after gw_account_usage. */
void gw_tenant_count(struct gw_req *r);
/* Count the joules of a request that has ended. */
struct chooser_energy;
void gw_joules_count(struct gw_req *r, const struct chooser_energy *e);
/* Count and log the end of the request. */
void gw_account_end(struct gw_req *r);

/* Return the average number of tokens of the model's answers; 0: unknown. */
uint32_t gw_series_answer(struct gw_worker *w, struct cgn_str model);
/* Observe the time between two pieces of a streamed answer. */
void gw_series_itl(struct gw_req *r, cgn_nsec gap);
