/* SPDX-License-Identifier: Apache-2.0 */
/* account: count, learn and log the end of a request. Prompts, answers and keys are in none of it. */
#pragma once
#include "router/request/request/request.h"

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
/* Does the request make tokens at all? */
bool gw_used_has_tokens(const struct gw_req *r);
/* used.c: return what the request has used, as far as it will ever be known. From gw_account_usage on that does not change. */
struct gw_used gw_used_of(const struct gw_req *r);
/* As gw_used_of, if the client left |ahead| from now, and the engine went on until then. */
struct gw_used gw_used_left(const struct gw_req *r, cgn_nsec ahead);
/* The request has ended: keep what it used, so that all who count it have the same. */
void gw_used_settle(struct gw_req *r);
/* Return the counts that the answer has told so far. */
struct usage gw_used_told(const struct gw_req *r);
/* Drop the figures of |io|, read from |bytes| bytes of an answer, that the request cannot have: more tokens of the answer
 * than were asked for, or than its bytes and its time can hold; more of the prompt than its body holds. All of them go
 * while the engine is not believed. Returns true if there was one. */
bool gw_used_bound(const struct gw_req *r, struct usage *io, uint64_t bytes);
/* Return how many of |input| tokens of a prompt that no engine counted were in the node's cache, as its choice expected.
 * Engines compute the last token in any case. */
uint64_t gw_used_cached(const struct gw_req *r, uint64_t input);
/* Count an untrue figure, and do not believe its engine for GW_UNTRUE_FOR. */
#define GW_UNTRUE_FOR (10 * 60 * CGN_SEC)
void gw_used_untrue(const struct gw_req *r);
/* Learn the tokens of events and bytes from an answer that the engine has counted. */
struct gw_series;
void gw_used_learn(const struct gw_req *r, struct gw_series *s);
/* As gw_used_of, with the tokens that a cascade computed for answers that were not shown. */
struct gw_used gw_used_all(const struct gw_req *r);
/* Return the tokens that a cascade computed for answers that were not shown. */
uint64_t gw_used_wasted(const struct gw_req *r);
/* Return the model whose prices a reservation is made with: the dearest that the request may need. */
struct cgn_str gw_used_dearest(const struct gw_req *r);
/* cascade.c: count what a cascade saved and wasted. Call once, after gw_account_usage. */
void gw_cascade_count(struct gw_req *r);
/* Add |amount| of money to |to|, a counter of millionths, rounded at random so that sums are right. */
void gw_money_add(struct gw_worker *w, struct metric_cell *to, uint64_t amount);
/* Return the price of tokens of |model|. */
uint64_t gw_used_price(const struct gw_req *r, struct cgn_str model, uint64_t input, uint64_t cached,
	uint64_t output);
/* Bytes of an event stream went to the client: count its events. */
void gw_used_relayed(struct gw_req *r, struct cgn_str data);
/* Count and log the end of the request. */
void gw_account_end(struct gw_req *r);

/* Return the average number of tokens of the model's answers; 0: unknown. */
uint32_t gw_series_answer(struct gw_worker *w, struct cgn_str model);
/* Return the average thousandths of joules of the model's requests; 0: unknown. */
uint64_t gw_series_joules(struct gw_worker *w, struct cgn_str model);
/* Forget the series of models that no node has had for half a minute, or ten while nodes are yet to tell theirs. Call once a
 * second. */
void gw_series_sweep(struct gw_worker *w, cgn_nsec now);
/* Observe the time between two pieces of a streamed answer. */
void gw_series_itl(struct gw_req *r, cgn_nsec gap);
