/* SPDX-License-Identifier: Apache-2.0 */
/* summary: this cluster's summary for a peer: GET
 * /federation/v1/summary?since=GENERATION&version=VERSION&also=GENERATION,..., on the port of the peer.
 * |also|: further generations that the peer has, of other routers of this cluster. */
#include "policy/power/energy/energy.h"
#include "policy/route/peer/load.h"
#include "router/answer/answer/reply_priv.h"
#include "router/request/admission/admission.h"
#include "router/shared/peers/peers.h"
#include "router/shared/peers/summaries.h"

#define TYPE "application/octet-stream"

static void model_fill(const struct gw_req *r, const struct view_model *m, struct peer_load *out)
{
	const struct gw_admission *g = r->w->shared->admission;
	const struct gw_price *price = gw_rules_price(r->w->rules, m->name);
	struct peer_load_sums s = {0};
	for (size_t i = 0; i < m->n_ready; i++)
		peer_load_add(&s, &r->w->shared->choice.stats[m->ready[i]->slot], m->ready[i]->width,
			r->w->rules->route.max_inflight,
			energy_prompt_watts(r->w->shared->choice.energy, m->ready[i]->slot));
	*out = peer_load_of(&s);
	out->name = m->name;
	out->waiting = g != NULL
		? atomic_load_explicit(&g->waiting_of[admission_bucket(m->name)], memory_order_relaxed)
		: 0;
	out->input = price != NULL ? price->input : 0;
	out->output = price != NULL ? price->output : 0;
}

/* Read the number |name| of the query into |*v|, which keeps its value where there is none. */
static bool number_get(const struct gw_req *r, const char *name, uint64_t *v)
{
	struct cgn_str text = http_query_get(r->client.path, name);
	return text.n == 0 || cgn_str_u64(text, v);
}

/* Read the numbers of the list |also|. Further ones than are kept do not count. */
static bool also_get(const struct gw_req *r, struct gw_summaries_question *q)
{
	struct cgn_str list = http_query_get(r->client.path, "also");
	for (size_t i = 1; list.n > 0 && i < PEER_VIEWS; i++)
		if (!cgn_str_u64(cgn_str_split(&list, ','), &q->since[i]))
			return false;
	return true;
}

static bool question_get(const struct gw_req *r, struct gw_summaries_question *q)
{
	uint64_t version = 1;
	if (!number_get(r, "since", &q->since[0]) || !also_get(r, q) || !number_get(r, "version", &version) ||
		version == 0)
		return false;
	q->version = version < PEER_VERSION ? (unsigned)version : PEER_VERSION;
	return true;
}

enum gw_step gw_reply_summary(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.limit = PEER_BYTES};
	struct gw_peer *p = r->client.from.peer;
	struct peer_summary *s = cgn_arena_zero(&r->arena, sizeof *s);
	struct gw_summaries_question q = {0};
	struct cgn_err err;
	if (!question_get(r, &q))
		return gw_refuse(r,
			&(struct gw_refusal){400, "invalid_request_error", "invalid_parameter",
				.param = "since"},
			"since is the number of a generation, also a list of such numbers, and version the greatest one that is read");
	for (size_t i = 0; s != NULL && i < r->w->view->n_models && s->n_models < PEER_MODELS; i++) {
		const struct view_model *m = &r->w->view->models[i];
		if (gw_peer_may_ask(p, m->name) && m->name.n <= PEER_NAME)
			model_fill(r, m, &s->models[s->n_models++]);
	}
	cgn_rc rc = s != NULL ? gw_summaries_answer(p->summaries, &q, cgn_loop_now(r->w->loop), s, &b, &err)
			      : CGN_RC_OF(CGN_NO_MEMORY);
	if (rc.code == CGN_OVERLOADED)
		return gw_refuse(r, &(struct gw_refusal){503, "server_error", "too_soon", .retry_after = 1},
			"%s", err.msg);
	if (!cgn_ok(rc))
		return gw_refuse_no_memory(r, "federation");
	return gw_reply_typed(r, 200, TYPE, &b);
}
