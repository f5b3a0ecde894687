/* SPDX-License-Identifier: Apache-2.0 */
/* reply: the node that was chosen, its booking, and the routes about reservations. */
#include "router/answer/answer/reply.h"
#include "base/json/json.h"
#include "policy/route/quote/guess.h"
#include "router/answer/selection/reservations.h"
#include "router/answer/selection/selection_priv.h"
#include "router/request/account/explain.h"
#include "router/request/isolate/isolate.h"
#include "router/request/limit/shares.h"
#include "router/request/permit/permit.h"

#define BAD_REQUEST  "invalid_request_error"
#define FALLBACKS    2
#define RESERVATIONS "/reservations/"

/* ---- the chosen node ---- */

static struct cgn_str id_of(const struct gw_req *r)
{
	const struct gw_selecting *s = r->selecting;
	return s->ask.id[0] != '\0' ? cgn_str_of(s->ask.id) : r->client.id;
}

/* Blocks that the candidate holds in |tier| or a better one. */
static uint64_t held_within(const struct route_cand *c, size_t tier)
{
	uint64_t n = 0;
	for (size_t i = 0; i <= tier; i++)
		n += c->by_tier[i];
	return n < c->held ? n : c->held;
}

static void overlap_put(struct json_out *j, const struct route_cand *c, double block_tokens)
{
	static const char *const tiers[BLOCK_TIERS] =
		{[BLOCK_GPU] = "gpu", [BLOCK_RAM] = "cpu", [BLOCK_SSD] = "disk"};
	json_key_open(j, "overlap", '{');
	json_key_u64(j, "longest_matched", (uint64_t)(c->held * block_tokens));
	for (size_t i = 0; i < BLOCK_TIERS; i++)
		if (tiers[i] != NULL)
			json_key_u64(j, tiers[i], (uint64_t)((double)held_within(c, i) * block_tokens));
	json_key_open(j, "dp", '{');
	json_key_u64(j, "0", (uint64_t)(c->held * block_tokens));
	json_close(j, '}');
	json_close(j, '}');
}

/* Put the endpoints that would be chosen next, for a client that cannot reach the first one. */
static void fallbacks_put(struct gw_req *r, struct json_out *j, const struct chooser_pick_result *p)
{
	struct route_cand *left = cgn_arena_get(&r->arena, p->n * sizeof *left);
	size_t n = 0;
	for (size_t i = 0; left != NULL && i < p->n; i++)
		if (i != p->index)
			left[n++] = p->cands[i];
	json_key_open(j, "fallbacks", '[');
	for (size_t k = 0; k < FALLBACKS && n > 0; k++) {
		struct route_pick next = route_pick(&p->ask, left, n);
		if (next.verdict != ROUTE_PICKED)
			break;
		const struct view_node *node = view_node_at(r->w->view, left[next.index].slot);
		if (node != NULL && gw_select_endpoint(r, node).n > 0)
			json_put_str(j, gw_select_endpoint(r, node));
		memmove(left + next.index, left + next.index + 1, (n - next.index - 1) * sizeof *left);
		n--;
	}
	json_close(j, ']');
}

/* Put the changes that the engine needs in the client's body. */
static void rewrite_put(struct gw_req *r, struct json_out *j, const struct view_model *m, uint16_t slot)
{
	struct cgn_str name = {r->body.bytes.p + r->prompt.name_at, r->prompt.name_n};
	struct cgn_str by = gw_isolation_name(r, m, slot, view_served_name(m, slot)->json);
	if (r->selecting->own || cgn_str_eq(name, by) || name.n == 0)
		return;
	json_key_open(j, "rewrite", '{');
	json_key_u64(j, "at", r->prompt.name_at);
	json_key_u64(j, "length", r->prompt.name_n);
	json_key_str(j, "with", by);
	json_close(j, '}');
}

static void selection_put(struct gw_req *r, struct json_out *j, const struct chooser_ask *ask,
	const struct chooser_pick_result *p)
{
	const struct route_cand *c = &p->cands[p->index];
	const struct view_node *node = view_node_at(r->w->view, c->slot);
	const struct cgn_str endpoint = gw_select_endpoint(r, node);
	uint64_t input = r->prompt.tokens > 0 ? r->prompt.tokens : r->plan.prompt_tokens;
	uint64_t cached = quote_cached(ask, c, input);
	double block = ask->block_tokens > 0
		? ask->block_tokens
		: (double)chooser_block_tokens(ask, &r->w->shared->choice.stats[c->slot]);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf url = {0};
	cgn_buf_putz(&url, "http://");
	cgn_buf_str(&url, endpoint);
	json_open(j, '{');
	json_key_str(j, "selection_id", id_of(r));
	json_key_str(j, "model_name", r->prompt.model);
	json_key_z(j, "routing_group", "default");
	json_key_u64(j, "worker_id", selection_worker(c->node_id_hash));
	json_key_u64(j, "dp_rank", 0);
	json_key_str(j, "endpoint", cgn_buf_view(&url));
	json_key_u64(j, "block_size", (uint64_t)(block + 0.5));
	overlap_put(j, c, block);
	json_key_u64(j, "effective_prefill_tokens", input > cached ? input - cached : 0);
	json_key_z(j, "node", node->id);
	json_key_str(j, "model", view_served_name(ask->model, c->slot)->text);
	fallbacks_put(r, j, p);
	rewrite_put(r, j, ask->model, c->slot);
	json_close(j, '}');
}

/* ---- choosing ---- */

static const struct gw_refusal no_node = {503, "server_error", "no_node", .reason = "no_node",
	.retry_after = 1};

enum gw_step gw_select_reply(struct gw_req *r, const struct chooser_ask *ask,
	const struct chooser_pick_result *p)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_out j = json_out_to(&b);
	if (p->verdict == ROUTE_FULL)
		return gw_refuse(r,
			&(struct gw_refusal){503, "server_error", "overloaded", .reason = "concurrency",
				.retry_after = 1},
			"every node that serves %.*s has as many requests as it may have",
			CGN_STR_ARG(r->prompt.model));
	if (p->verdict != ROUTE_PICKED)
		return gw_refuse(r, &no_node, "no node that serves %.*s is ready",
			CGN_STR_ARG(r->prompt.model));
	selection_put(r, &j, ask, p);
	return gw_reply_json(r, 200, &b);
}

bool gw_select_only_picks(const struct gw_req *r)
{
	return r->selecting != NULL && r->selecting->op == SELECT_PICK;
}

/* Keep the booking under the request's id. */
static CGN_RC ticket_keep(struct gw_req *r, const struct chooser_ticket *ticket, struct quota_told *told,
	struct cgn_err *err)
{
	const struct gw_reservation_name name = gw_select_name(r, id_of(r));
	if (!selection_id_is_ok(name.id))
		return CGN_FAIL(err, INVALID,
			"X-Request-Id names the reservation: at most %d visible characters without / and %%",
			SELECTION_ID_MAX);
	const struct gw_quota_taker who = gw_share_taker(r, QUOTA_RESERVATIONS, 0);
	const struct gw_reservation_new of = {ticket, &who, r->plan.place, cgn_loop_now(r->w->loop)};
	CGN_TRY(gw_reservations_add(r->w->shared->reservations, &name, &of, told, err));
	r->plan.place = 0; /* The reservation has it. */
	return CGN_OK;
}

static enum gw_step keep_refuse(struct gw_req *r, const struct quota_told *told, const struct cgn_err *err)
{
	const struct gw_quota_taker who = gw_share_taker(r, QUOTA_RESERVATIONS, 0);
	if (err->code == CGN_OVERLOADED && told->share)
		return gw_share_refuse(r, &who.holder, told, 1);
	const struct gw_refusal how = {.status = cgn_code_http(err->code),
		.type = err->code == CGN_CONFLICT || err->code == CGN_INVALID ? BAD_REQUEST : "server_error",
		.code = err->code == CGN_CONFLICT     ? "reservation_exists"
			: err->code == CGN_OVERLOADED ? "overloaded"
			: err->code == CGN_INVALID    ? "invalid_header"
						      : "no_memory",
		.retry_after = err->code == CGN_OVERLOADED ? 1 : 0};
	return gw_refuse(r, &how, "%s", err->msg);
}

enum gw_step gw_select_book(struct gw_req *r, const struct chooser_ask *ask, struct chooser_pick_result *p)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_out j = json_out_to(&b);
	struct gw_worker *w = r->w;
	struct chooser_ticket ticket = {0};
	struct quota_told told = {0};
	struct cgn_err err;
	if (gw_select_endpoint(r, view_node_at(w->view, p->cands[p->index].slot)).n == 0) {
		chooser_unclaim(w->chooser, p);
		return gw_refuse_no_memory(r, "memory"); /* gw_select_excluded had none. */
	}
	gw_explain_pick(r, ask, p, 0);
	selection_put(r, &j, ask, p);
	chooser_book(w->chooser, ask, p, &ticket);
	if (b.bad || !cgn_ok(ticket_keep(r, &ticket, &told, &err))) {
		chooser_release(w->chooser, &ticket, cgn_loop_now(w->loop));
		return b.bad ? gw_refuse_no_memory(r, "memory") : keep_refuse(r, &told, &err);
	}
	w->sent++;
	return gw_reply_json(r, 200, &b);
}

/* ---- reservations ---- */

enum reported { REPORTED_PREFILL, REPORTED_OUTPUT, REPORTED_END, REPORTED_NOTHING };

/* Read the report and the id of its reservation from the path. */
static enum reported report_read(const struct gw_req *r, struct cgn_str *id)
{
	const size_t lead = sizeof RESERVATIONS - 1;
	struct cgn_str rest = r->client.path, path = cgn_str_split(&rest, '?');
	struct cgn_str what = {path.p + lead, path.n - lead};
	*id = cgn_str_split(&what, '/');
	if (cgn_str_is(r->client.method, "DELETE"))
		return what.p == NULL ? REPORTED_END : REPORTED_NOTHING;
	if (cgn_str_is(what, "prefill_complete"))
		return REPORTED_PREFILL;
	return cgn_str_is(what, "output_block") ? REPORTED_OUTPUT : REPORTED_NOTHING;
}

static bool report_take(struct gw_req *r, enum reported what, const struct gw_reservation_name *name)
{
	struct gw_worker *w = r->w;
	struct gw_reservations *t = w->shared->reservations;
	cgn_nsec now = cgn_loop_now(w->loop);
	uint64_t tokens = 0;
	if (what == REPORTED_PREFILL)
		return gw_reservations_begun(t, w->chooser, name, now);
	if (what == REPORTED_OUTPUT)
		return gw_reservations_touch(t, name, now);
	(void)cgn_str_u64(http_query_get(r->client.path, "completion_tokens"), &tokens);
	bool failed = cgn_str_is(http_query_get(r->client.path, "outcome"), "failed");
	return gw_reservations_end(t, w->chooser, name, failed, tokens, now);
}

static enum gw_step report_reply(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct cgn_str id;
	enum reported what = report_read(r, &id);
	struct gw_reservation_name name = gw_select_name(r, id);
	if (what == REPORTED_NOTHING)
		return gw_refuse(r, &(struct gw_refusal){404, BAD_REQUEST, "not_found"},
			"there is no route %.*s %.*s", CGN_STR_ARG(r->client.method),
			(int)(r->client.path.n < 200 ? r->client.path.n : 200), r->client.path.p);
	if (!report_take(r, what, &name))
		return gw_refuse(r, &(struct gw_refusal){404, BAD_REQUEST, "reservation_not_found"},
			"there is no reservation %.*s: it has ended, its lease is over (router.selection.lease), or it is another key's",
			(int)(id.n < 200 ? id.n : 200), id.p);
	cgn_buf_putz(&b, "{}");
	return gw_reply_json(r, 200, &b);
}

/* ---- workers ---- */

static void worker_put(const struct gw_req *r, struct json_out *j, const struct view_model *m, size_t i)
{
	const struct view_node *n = m->ready[i];
	const struct cgn_str endpoint = gw_select_endpoint(r, n);
	if (endpoint.n == 0)
		return;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf url = {0};
	cgn_buf_putz(&url, "http://");
	cgn_buf_str(&url, endpoint);
	json_open(j, '{');
	json_key_u64(j, "worker_id", selection_worker(n->node_id_hash));
	json_key_str(j, "model_name", m->name);
	json_key_z(j, "routing_group", "default");
	json_key_str(j, "endpoint", cgn_buf_view(&url));
	json_key_u64(j, "block_size", n->kv_block);
	json_key_z(j, "node", n->id);
	json_close(j, '}');
}

static enum gw_step workers_reply(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_out j = json_out_to(&b);
	json_open(&j, '[');
	for (size_t k = 0; k < r->w->view->n_models; k++) {
		const struct view_model *m = &r->w->view->models[k];
		for (size_t i = 0; gw_permit_model(r, m->name) && i < m->n_ready; i++)
			worker_put(r, &j, m, i);
	}
	json_close(&j, ']');
	return gw_reply_json(r, 200, &b);
}

enum gw_step gw_select_local(struct gw_req *r)
{
	return cgn_str_starts(r->client.path, RESERVATIONS) ? report_reply(r) : workers_reply(r);
}
