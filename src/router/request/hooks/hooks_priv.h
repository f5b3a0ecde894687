/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include "router/request/hooks/hooks.h"

#include "router/request/request/hook.h"

/* ---- client.c ---- */

struct webask_answer;
struct gw_hook_client *gw_hook_client_ref(struct gw_hook_client *c); /* NULL-safe. */
void gw_hook_client_unref(struct gw_hook_client **take);             /* NULL-safe. */
/* POST |json|; as webask_start. */
CGN_RC gw_hook_client_post(struct gw_hook_client *c, struct cgn_str json, cgn_nsec timeout,
	void (*done)(void *user, const struct webask_answer *a), void *user, struct webask **out,
	struct cgn_err *err);

/* ---- ask.c ---- */

/* Return the request's part, which is made at the first call; NULL: out of memory. */
struct gw_hooking *gw_hooking_of(struct gw_req *r);
/* Book |bytes| instead of |*booked| of router.max_inflight_body; false: there is no room. */
bool gw_hook_book(struct gw_req *r, uint64_t *booked, uint64_t bytes);
/* Fill in who asks for what. |roles| has room for IDENTITY_MAX_ROLES. */
void gw_ask_fill(const struct gw_req *r, struct hook_question *q, const char **roles);
/* Ask |client| (NULL: there is none) of |hook|. The request is woken when ask.answered is set, which may be so on
 * return. */
void gw_ask_start(struct gw_req *r, enum gw_hook_kind hook, struct gw_hook_client *client, cgn_nsec timeout,
	uint64_t max, const struct hook_question *q);
/* The question cannot be asked: count |outcome|, and answer as a hook that has failed. */
void gw_ask_fail(struct gw_req *r, enum gw_hook_kind hook, const char *outcome, const char *why);
/* Is a question on its way? */
bool gw_ask_is_open(const struct gw_hooking *h);
/* Drop the question that is on its way. */
void gw_ask_cancel(struct gw_req *r);
/* Write the line of the audit log of a refusal for |code|. */
void gw_ask_audit(const struct gw_req *r, enum gw_hook_kind hook, const char *code);
const char *gw_hook_text(enum gw_hook_kind hook);
