/* SPDX-License-Identifier: Apache-2.0 */
/* resume: memory and bodies of answers that another engine may continue. */
#include "router/answer/answer/resume.h"

#include <stdlib.h>

#include "policy/answer/opening/opening.h"
#include "policy/answer/resume/resume.h"
#include "router/answer/answer/relay.h"

#define GW_RESUME_TAG 0x64e50e01U

struct gw_resume {
	uint32_t tag;
	struct resume *s;
	struct cgn_buf body;             /* the client's body, once the answer has begun */
	uint64_t booked;                 /* bytes booked of router.resume_size */
	uint64_t prompt_tokens;          /* tokens counted in the client's prompt; 0: unknown */
	const struct engine_resume *how; /* how the engine of the current leg continues; NULL: it can't */
	uint16_t *excluded;              /* result of gw_resume_excluded */
};

/* |outcome|: the label of cgn_resumes_total. */
static void resume_count(const struct gw_req *r, const char *outcome)
{
	metric_add(METRIC_OF(r->w->shared->telemetry, RESUMES, outcome), 1);
}

void gw_resume_deny(struct gw_req *r, const char *outcome, const char *why)
{
	resume_count(r, outcome);
	r->answer.unresumable = r->answer.unresumable != NULL ? r->answer.unresumable : outcome;
	r->answer.cut_for = cgn_arena_strz(&r->arena, cgn_str_of(why));
}

static bool header_refuse(struct gw_req *r)
{
	struct cgn_str asked = r->client.resume_asked;
	(void)gw_refuse(r,
		&(struct gw_refusal){400, "invalid_request_error", "invalid_header", .param = "X-Cgn-Resume",
			.reason = "invalid"},
		"X-Cgn-Resume is 1 (another engine shall go on with the answer if one dies), exact or 0, not \"%.*s\"",
		(int)(asked.n < 40 ? asked.n : 40), asked.p);
	return false;
}

bool gw_resume_asked(struct gw_req *r, bool *out)
{
	bool off = cgn_str_is(r->client.resume_asked, "0");
	bool on = cgn_str_is(r->client.resume_asked, "1") || cgn_str_is(r->client.resume_asked, "exact");
	*out = !r->answer.head_sent && !r->client.once && (on || (!off && r->w->rules->resume));
	return r->answer.head_sent || r->client.resume_asked.n == 0 || on || off || header_refuse(r);
}

void gw_resume_open(struct gw_req *r, struct json_val body)
{
	enum prompt_api api = prompt_api_of(r->client.target);
	bool exact = cgn_str_is(r->client.resume_asked, "exact");
	r->answer.unresumable = resume_refusal(api, body);
	if (r->answer.unresumable == NULL && exact && !resume_is_greedy(body))
		r->answer.unresumable = RESUME_LACKS_GREEDY;
	if (r->answer.unresumable != NULL)
		return;
	struct gw_resume *z = r->answer.resume = CGN_NEW(struct gw_resume);
	z->tag = GW_RESUME_TAG;
	z->s = resume_new(api, body);
	if (exact)
		resume_repeat(z->s);
}

/* ---- memory ---- */

static void memory_book(struct gw_req *r, uint64_t bytes)
{
	_Atomic uint64_t *used = &r->w->shared->resume_bytes;
	if (bytes > r->answer.resume->booked)
		atomic_fetch_add_explicit(used, bytes - r->answer.resume->booked, memory_order_relaxed);
	else
		atomic_fetch_sub_explicit(used, r->answer.resume->booked - bytes, memory_order_relaxed);
	r->answer.resume->booked = bytes;
}

void gw_resume_drop(struct gw_req *r)
{
	struct gw_resume *z = r->answer.resume;
	if (z == NULL)
		return;
	CGN_LIVE(z, GW_RESUME_TAG);
	memory_book(r, 0);
	r->answer.resume = NULL;
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

static void resume_disable(struct gw_req *r, const char *why)
{
	r->answer.unresumable = why;
	gw_resume_drop(r);
}

static const struct engine_resume *how_of(const struct gw_req *r, uint16_t slot)
{
	const struct view_model *m = view_model_find(r->w->view, r->prompt.model);
	for (size_t i = 0; m != NULL && i < m->n_ready; i++)
		if (m->ready[i]->slot == slot)
			return m->resume[i];
	return NULL;
}

void gw_resume_keep(struct gw_req *r)
{
	struct gw_resume *z = r->answer.resume;
	if (z == NULL)
		return;
	CGN_LIVE(z, GW_RESUME_TAG);
	gw_call_keep(&r->attempt.call); /* The body may go before the call ends. */
	uint64_t need = r->body.bytes.cap + resume_bytes(z->s);
	if (r->answer.status != 200 || !r->answer.event_stream) {
		resume_disable(r, RESUME_LACKS_API);
		return;
	}
	if (!has_room(r, need)) {
		resume_disable(r, RESUME_LACKS_MEMORY);
		return;
	}
	z->body = r->body.bytes;
	r->body.bytes = (struct cgn_buf){.p = NULL};
	z->prompt_tokens = r->prompt.chain.n < ROUTE_MAX_BLOCKS ? r->prompt.tokens : 0;
	z->how = how_of(r, r->attempt.call.slot);
	memory_book(r, need);
	resume_begin(z->s, z->how);
}

/* ---- the answer ---- */

/* Book the memory that the last bytes took. An answer that has become unresumable is dropped, unless it was
 * resumed before: then ids and names in its events still have to be replaced. */
static void memory_settle(struct gw_req *r, struct cgn_buf *out)
{
	struct gw_resume *z = r->answer.resume;
	uint64_t bytes = z->body.cap + resume_bytes(z->s), more = bytes > z->booked ? bytes - z->booked : 0;
	if (resume_lost(z->s) == NULL && !has_room(r, more))
		resume_give_up(z->s, RESUME_LACKS_MEMORY, out);
	if (resume_lost(z->s) == NULL) {
		memory_book(r, bytes);
		return;
	}
	r->answer.unresumable = resume_lost(z->s);
	if (r->plan.legs.resumes == 0) {
		gw_resume_drop(r);
		return;
	}
	resume_give_up(z->s, r->answer.unresumable, out);
	cgn_buf_fini(&z->body);
	memory_book(r, resume_bytes(z->s));
}

void gw_resume_relay(struct gw_req *r, struct cgn_str data)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	CGN_LIVE(r->answer.resume, GW_RESUME_TAG);
	resume_feed(r->answer.resume->s, data, &out);
	if (!resume_differs(r->answer.resume->s))
		memory_settle(r, &out);
	gw_relay_bytes(r, cgn_buf_view(&out));
	if (out.bad && r->client.x != NULL)
		http_exchange_abort(r->client.x, CGN_NO_MEMORY);
}

void gw_resume_flush(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	if (r->answer.resume == NULL)
		return;
	CGN_LIVE(r->answer.resume, GW_RESUME_TAG);
	resume_flush(r->answer.resume->s, &out);
	gw_relay_bytes(r, cgn_buf_view(&out));
}

bool gw_resume_differs(const struct gw_req *r)
{
	return r->answer.resume != NULL && resume_differs(r->answer.resume->s);
}

/* ---- another engine ---- */

const uint16_t *gw_resume_excluded(struct gw_req *r, size_t *n)
{
	struct gw_resume *z = r->answer.resume;
	const struct view_model *m = view_model_find(r->w->view, r->prompt.model);
	CGN_LIVE(z, GW_RESUME_TAG);
	size_t ready = m != NULL && resume_text(z->s).n > 0 ? m->n_ready : 0;
	uint16_t *v = z->excluded = CGN_GROWN(z->excluded, PLAN_MAX_ATTEMPTS + ready);
	*n = plan_tried(&r->plan.legs, v);
	for (size_t i = 0; i < ready; i++)
		if (m->resume[i] == NULL)
			v[(*n)++] = m->ready[i]->slot;
	return v;
}

/* The body that continues an answer has the model's name in another place. */
static void name_find(struct gw_req *r)
{
	struct json_val body, model;
	struct cgn_buf *b = &r->body.bytes;
	if (r->prompt.name_n == 0 || b->bad || !cgn_ok(json_parse(cgn_buf_view(b), &body, NULL, NULL)) ||
		!json_get(body, "model", &model))
		return;
	r->prompt.name_at = (size_t)(model.raw.p - b->p);
	r->prompt.name_n = model.raw.n;
}

/* |how| NULL: no text was shown yet, so there is nothing to continue. */
static bool body_make(struct gw_req *r, const struct engine_resume *how)
{
	struct gw_resume *z = r->answer.resume;
	struct json_val body;
	gw_body_drop(r);
	/* parsed before, when it came */
	CGN_MUST(cgn_ok(json_parse(cgn_buf_view(&z->body), &body, NULL, NULL)));
	resume_body(z->s, body, how, &r->body.bytes);
	r->body.booked = r->body.bytes.cap;
	atomic_fetch_add_explicit(&r->w->shared->body_bytes, r->body.booked, memory_order_relaxed);
	name_find(r);
	return !r->body.bytes.bad;
}

enum gw_step gw_resume_complete(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	if (resume_need(r->answer.resume->s) == RESUME_NEEDS_DONE)
		resume_done(r->answer.resume->s, &out);
	gw_relay_bytes(r, cgn_buf_view(&out));
	gw_relay_finish(r);
	resume_count(r, "completed");
	r->plan.legs.resumes++;
	gw_goto(r, GW_ANSWER);
	return STEP_AGAIN;
}

static bool ends_inside_event(const struct gw_answer *to, struct cgn_str part)
{
	if (part.n > 0) /* the part of an event waits, however long it is */
		return opening_tail_breaks_off(part, true);
	struct cgn_str tail = usage_tail_view(&to->tail);
	return opening_tail_breaks_off(tail, tail.n == to->bytes_out);
}

static bool ends_as_object(struct cgn_str text)
{
	while (text.n > 0 && (text.p[text.n - 1] == '\n' || text.p[text.n - 1] == '\r'))
		text.n--;
	return text.n > 0 && text.p[text.n - 1] == '}';
}

/* Return true if the stream lacks the end that its dialect has. */
static bool ends_early(const struct gw_req *r, struct cgn_str part)
{
	const struct gw_answer *to = &r->answer;
	if (to->status != 200 || !to->comments || !(opening_answers(r->client.target) & OPENING_ENDS))
		return false;
	struct cgn_str tail = usage_tail_view(&to->tail);
	if (to->torn) /* The tail is the end of the last event. */
		return !ends_as_object(tail);
	enum opening_ending ending = opening_tail_ends(part, true);
	if (ending == ENDING_UNKNOWN)
		ending = opening_tail_ends(tail, tail.n == to->bytes_out);
	return ending == ENDING_CUT;
}

const char *gw_resume_breaks_off(const struct gw_req *r)
{
	const struct gw_answer *to = &r->answer;
	struct cgn_str part = {NULL, 0};
	if (!to->event_stream || r->client.x == NULL)
		return NULL;
	if (to->resume != NULL)
		part = resume_pending(to->resume->s);
	if (part.n == 0 && to->comments && !to->torn)
		part = cgn_buf_view(&to->part);
	if (ends_inside_event(to, part))
		return "the answer ended inside an event";
	return ends_early(r, part) ? "the answer ended without the end that its dialect has" : NULL;
}

enum plan_missing gw_resume_missing(struct gw_req *r)
{
	struct gw_resume *z = r->answer.resume;
	if (gw_resume_differs(r))
		r->answer.unresumable = RESUME_LACKS_SAME;
	const char *lost = r->answer.unresumable;
	if (lost != NULL)
		gw_resume_deny(r, strcmp(lost, RESUME_LACKS_MEMORY) == 0 ? "no_memory" : "unresumable",
			resume_lost_text(lost));
	if (z == NULL || lost != NULL)
		return PLAN_MISSES_LOST;
	CGN_LIVE(z, GW_RESUME_TAG);
	return resume_need(z->s) == RESUME_NEEDS_ENGINE ? PLAN_MISSES_MORE : PLAN_MISSES_NOTHING;
}

/* The blocks of the body are the same in all shapes, so any shape finds the node that holds most of them. */
bool gw_resume_prepare(struct gw_req *r)
{
	return body_make(r, engine_resume_named(CGN_STR("continue")));
}

size_t gw_resume_shown(const struct gw_req *r)
{
	return resume_text(r->answer.resume->s).n;
}

bool gw_resume_fits(const struct gw_req *r, const struct engine_resume *how)
{
	return how != NULL || gw_resume_shown(r) == 0;
}

bool gw_resume_send(struct gw_req *r, const struct view_node *node)
{
	return gw_resume_send_as(r, how_of(r, node->slot));
}

bool gw_resume_send_as(struct gw_req *r, const struct engine_resume *how)
{
	struct gw_resume *z = r->answer.resume;
	CGN_LIVE(z, GW_RESUME_TAG);
	z->how = how;
	if (z->prompt_tokens > 0 && r->prompt.tokens > z->prompt_tokens &&
		r->prompt.chain.n < ROUTE_MAX_BLOCKS)
		resume_counted(z->s, r->prompt.tokens - z->prompt_tokens);
	if (!gw_resume_fits(r, how))
		return false; /* there was no memory to exclude the node */
	return body_make(r, z->how);
}

void gw_resume_begin(struct gw_req *r)
{
	CGN_LIVE(r->answer.resume, GW_RESUME_TAG);
	resume_begin(r->answer.resume->s, r->answer.resume->how);
	r->plan.legs.resumes++;
	resume_count(r, "resumed");
	gw_body_drop(r);
	r->attempt.headers = NULL;
	r->attempt.n_headers = 0;
}
