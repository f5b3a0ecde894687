/* SPDX-License-Identifier: Apache-2.0 */
/* resume: an engine died over a streamed answer, and another one goes on with it: the client's body and what
 * it was shown are kept while the answer runs, within router.resume_size, and a cut becomes a second way
 * through GW_ROUTE. */
#include <stdlib.h>

#include "base/log/log.h"
#include "policy/resume/resume.h"
#include "router/request/gateway.h"

#define GW_RESUME_TAG 0x64e50e01U

struct gw_resume {
	uint32_t tag;
	struct resume *s;
	struct cgn_buf body;             /* the client's, once its answer has begun */
	uint64_t booked;                 /* of router.resume_size */
	uint64_t prompt_tokens;          /* in it, as we counted them; 0: unknown */
	const struct engine_resume *how; /* of the node that it was sent to */
	uint16_t *excluded;
	size_t n_excluded;
};

static void count(const struct gw_req *r, const char *outcome)
{
	metric_add(METRIC_OF(r->w->shared->telemetry, RESUMES, outcome), 1);
}

static bool refuse_header(struct gw_req *r)
{
	(void)gw_refuse(r,
		&(struct gw_refusal){400, "invalid_request_error", "invalid_header", .param = "X-Cgn-Resume",
			.reason = "invalid"},
		"X-Cgn-Resume is 1 (another engine shall go on with the answer if one dies) or 0, not \"%.*s\"",
		(int)(r->resume_asked.n < 40 ? r->resume_asked.n : 40), r->resume_asked.p);
	return false;
}

bool gw_resume_open(struct gw_req *r, struct json_val body)
{
	bool on = cgn_str_is(r->resume_asked, "1"), off = cgn_str_is(r->resume_asked, "0");
	enum prompt_api api = prompt_api_of(r->path);
	if (r->head_sent)
		return true; /* it is under way */
	if (r->resume_asked.n > 0 && !on && !off)
		return refuse_header(r);
	if (!on && (off || !r->w->rules->resume))
		return true;
	r->unresumable = resume_refusal(api, body);
	if (r->unresumable != NULL)
		return true;
	struct gw_resume *z = calloc(1, sizeof *z);
	struct resume *s = resume_new(api, body);
	if (z == NULL || s == NULL) {
		free(z);
		resume_free(&s);
		r->unresumable = RESUME_LACKS_MEMORY;
		return true;
	}
	z->tag = GW_RESUME_TAG;
	z->s = s;
	r->resume = z;
	return true;
}

/* ---- memory ---- */

static void book(struct gw_req *r, uint64_t bytes)
{
	_Atomic uint64_t *used = &r->w->shared->resume_bytes;
	if (bytes > r->resume->booked)
		atomic_fetch_add_explicit(used, bytes - r->resume->booked, memory_order_relaxed);
	else
		atomic_fetch_sub_explicit(used, r->resume->booked - bytes, memory_order_relaxed);
	r->resume->booked = bytes;
}

void gw_resume_drop(struct gw_req *r)
{
	struct gw_resume *z = r->resume;
	if (z == NULL)
		return;
	CGN_LIVE(z, GW_RESUME_TAG);
	book(r, 0);
	r->resume = NULL;
	z->tag = 0;
	resume_free(&z->s);
	cgn_buf_fini(&z->body);
	free(z->excluded);
	free(z);
}

static bool has_room(struct gw_req *r, uint64_t more)
{
	return atomic_load_explicit(&r->w->shared->resume_bytes, memory_order_relaxed) + more <=
		r->w->rules->resume_size;
}

static void give_up(struct gw_req *r, const char *why)
{
	r->unresumable = why;
	gw_resume_drop(r);
}

static const struct engine_resume *how_of(const struct gw_req *r, uint16_t slot)
{
	const struct view_model *m = view_model_find(r->w->view, r->model);
	for (size_t i = 0; m != NULL && i < m->n_ready; i++)
		if (m->ready[i]->slot == slot)
			return m->resume[i];
	return NULL;
}

void gw_resume_keep(struct gw_req *r)
{
	struct gw_resume *z = r->resume;
	if (z == NULL)
		return;
	CGN_LIVE(z, GW_RESUME_TAG);
	uint64_t need = r->body.cap + resume_bytes(z->s);
	if (r->status != 200 || !r->event_stream) {
		give_up(r, RESUME_LACKS_API);
		return;
	}
	if (!has_room(r, need)) {
		give_up(r, RESUME_LACKS_MEMORY);
		return;
	}
	z->body = r->body;
	r->body = (struct cgn_buf){.p = NULL};
	z->prompt_tokens = r->chain.n < ROUTE_MAX_BLOCKS ? r->prompt_tokens : 0;
	z->how = how_of(r, r->t.slot);
	book(r, need);
	resume_begin(z->s, z->how);
}

/* ---- the answer ---- */

/* What becomes unresumable needs nothing of this any more, unless it has another engine's names to be put
 * right. */
static void settle(struct gw_req *r, struct cgn_buf *out)
{
	struct gw_resume *z = r->resume;
	uint64_t bytes = z->body.cap + resume_bytes(z->s), more = bytes > z->booked ? bytes - z->booked : 0;
	if (resume_lost(z->s) == NULL && !has_room(r, more))
		resume_give_up(z->s, RESUME_LACKS_MEMORY, out);
	if (resume_lost(z->s) == NULL) {
		book(r, bytes);
		return;
	}
	r->unresumable = resume_lost(z->s);
	if (r->resumes == 0) {
		gw_resume_drop(r);
		return;
	}
	resume_give_up(z->s, r->unresumable, out);
	cgn_buf_fini(&z->body);
	book(r, resume_bytes(z->s));
}

void gw_resume_relay(struct gw_req *r, struct cgn_str data)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	CGN_LIVE(r->resume, GW_RESUME_TAG);
	resume_feed(r->resume->s, data, &out);
	settle(r, &out);
	gw_relay_bytes(r, cgn_buf_view(&out));
	if (out.bad && r->x != NULL)
		http_exchange_abort(r->x, CGN_NO_MEMORY);
}

void gw_resume_flush(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	if (r->resume == NULL)
		return;
	CGN_LIVE(r->resume, GW_RESUME_TAG);
	resume_flush(r->resume->s, &out);
	gw_relay_bytes(r, cgn_buf_view(&out));
}

/* ---- another engine ---- */

const uint16_t *gw_resume_excluded(struct gw_req *r, size_t *n)
{
	struct gw_resume *z = r->resume;
	const struct view_model *m = view_model_find(r->w->view, r->model);
	*n = r->tries;
	if (z == NULL || m == NULL || resume_text(z->s).n == 0)
		return r->excluded;
	CGN_LIVE(z, GW_RESUME_TAG);
	uint16_t *v = realloc(z->excluded, (r->tries + m->n_ready) * sizeof *v);
	if (v == NULL)
		return r->excluded; /* gw_resume_send looks again */
	z->excluded = v;
	memcpy(v, r->excluded, r->tries * sizeof *v);
	for (size_t i = 0; i < m->n_ready; i++)
		if (m->resume[i] == NULL)
			v[(*n)++] = m->ready[i]->slot;
	return v;
}

/* r->body becomes the one that goes on; |how| NULL: there is no text to continue. */
static bool body_make(struct gw_req *r, const struct engine_resume *how)
{
	struct gw_resume *z = r->resume;
	struct json_val body;
	gw_body_drop(r);
	CGN_MUST(cgn_ok(json_parse(cgn_buf_view(&z->body), &body, NULL, NULL))); /* it was, when it came */
	resume_body(z->s, body, how, &r->body);
	r->body_booked = r->body.cap;
	atomic_fetch_add_explicit(&r->w->shared->body_bytes, r->body_booked, memory_order_relaxed);
	return !r->body.bad;
}

/* All that an engine would say was said already. */
static bool complete(struct gw_req *r, bool done)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	if (!done)
		resume_done(r->resume->s, &out);
	gw_relay_bytes(r, cgn_buf_view(&out));
	http_exchange_end(r->x, NULL, 0);
	count(r, "completed");
	r->resumes++;
	gw_try_end(r);
	gw_goto(r, GW_ANSWER);
	return true;
}

/* Why not; NULL: it may. */
static const char *denied(struct gw_req *r)
{
	if (!gw_can_retry(r))
		return "no_node";
	if (retry_budget_take(&r->w->budget, cgn_loop_now(r->w->loop)))
		return NULL;
	metric_add(METRIC_ONE(r->w->shared->telemetry, RETRIES_DENIED), 1);
	return "failed";
}

bool gw_resume_try(struct gw_req *r)
{
	struct gw_resume *z = r->resume;
	if (r->unresumable != NULL)
		count(r, strcmp(r->unresumable, RESUME_LACKS_MEMORY) == 0 ? "no_memory" : "unresumable");
	if (z == NULL || r->unresumable != NULL)
		return false;
	CGN_LIVE(z, GW_RESUME_TAG);
	if (resume_need(z->s) != RESUME_NEEDS_ENGINE)
		return complete(r, resume_need(z->s) == RESUME_NEEDS_NOTHING);
	const char *why = denied(r);
	/* Its blocks are the same in all shapes, so the node that holds most of them can be found before it
	 * is known how it continues. */
	if (why == NULL && !body_make(r, engine_resume_named(CGN_STR("continue"))))
		why = "no_memory";
	if (why != NULL) {
		count(r, why);
		return false;
	}
	cgn_log(INFO, "gateway.resume", F_STRN("id", r->id), F_STR("node", r->t.node_id),
		F_U64("try", r->tries), F_U64("bytes", resume_text(z->s).n));
	gw_try_end(r);
	r->paused = false;
	r->parsed = false;
	gw_goto(r, GW_ROUTE);
	return true;
}

bool gw_resume_send(struct gw_req *r, const struct view_node *node)
{
	struct gw_resume *z = r->resume;
	CGN_LIVE(z, GW_RESUME_TAG);
	z->how = how_of(r, node->slot);
	if (z->prompt_tokens > 0 && r->prompt_tokens > z->prompt_tokens && r->chain.n < ROUTE_MAX_BLOCKS)
		resume_counted(z->s, r->prompt_tokens - z->prompt_tokens);
	if (z->how == NULL && resume_text(z->s).n > 0)
		return false; /* there was no memory to exclude it */
	return body_make(r, z->how);
}

void gw_resume_begin(struct gw_req *r)
{
	CGN_LIVE(r->resume, GW_RESUME_TAG);
	resume_begin(r->resume->s, r->resume->how);
	r->resumes++;
	r->pieces = 0; /* the gap was not this node's */
	count(r, "resumed");
	gw_body_drop(r);
	r->t.headers = NULL;
	r->t.n_headers = 0;
}

void gw_resume_failed(const struct gw_req *r, const char *code)
{
	count(r, strcmp(code, "no_node") == 0 ? "no_node" : "failed");
}
