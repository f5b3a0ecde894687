/* SPDX-License-Identifier: Apache-2.0 */
/* ask: one question to an external check. */
#include <stdlib.h>

#include "base/log/log.h"
#include "io/wire/webask/webask.h"
#include "router/request/hooks/hooks_priv.h"
#include "router/request/permit/permit.h"

#define DOCUMENT_EXTRA ((size_t)64 * 1024) /* A document is at most twice its body and this. */

const char *gw_hook_text(enum gw_hook_kind hook)
{
	static const char *const texts[GW_HOOKS] = {[GW_HOOK_BEFORE] = "before", [GW_HOOK_AFTER] = "after"};
	return texts[hook];
}

struct gw_hooking *gw_hooking_of(struct gw_req *r)
{
	if (r->hook == NULL) {
		r->hook = CGN_NEW(struct gw_hooking);
		r->hook->tag = GW_HOOKING_TAG;
		r->hook->r = r;
	}
	return r->hook;
}

bool gw_hook_book(struct gw_req *r, uint64_t *booked, uint64_t bytes)
{
	_Atomic uint64_t *used = &r->w->shared->body_bytes;
	if (bytes > *booked &&
		atomic_load_explicit(used, memory_order_relaxed) + (bytes - *booked) >
			r->w->rules->max_inflight_body)
		return false;
	if (bytes > *booked)
		atomic_fetch_add_explicit(used, bytes - *booked, memory_order_relaxed);
	else
		atomic_fetch_sub_explicit(used, *booked - bytes, memory_order_relaxed);
	*booked = bytes;
	return true;
}

/* ---- the document ---- */

struct gw_ask_job {
	struct gw_hooking *owner; /* NULL: the question was dropped. */
	struct cgn_buf document;
	enum hook_body form;
	struct cgn_buf body; /* A copy: the answer may grow meanwhile. */
};

/* The query stays here: clients put keys there. */
static struct cgn_str path_plain(const struct gw_req *r)
{
	struct cgn_str rest = r->client.path;
	return cgn_str_split(&rest, '?');
}

static size_t roles_fill(const struct gw_req *r, const char **roles)
{
	const struct identity_roles *t = r->w->rules->auth.roles;
	size_t n = 0;
	for (size_t i = 0; i < IDENTITY_MAX_ROLES && identity_role_name(t, i) != NULL; i++)
		if ((r->identity.roles >> i & 1) != 0)
			roles[n++] = identity_role_name(t, i);
	return n;
}

void gw_ask_fill(const struct gw_req *r, struct hook_question *q, const char **roles)
{
	q->id = r->client.own;
	q->client_id = cgn_str_eq(r->client.id, r->client.own) ? (struct cgn_str){NULL, 0} : r->client.id;
	q->method = r->client.method;
	q->path = path_plain(r);
	q->model = r->prompt.asked;
	q->stream = r->prompt.stream;
	q->kind = identity_kind_text(r->identity.kind);
	q->name = cgn_str_of(r->identity.name);
	q->tenant = r->identity.kind != IDENTITY_NONE ? r->identity.tenant : (struct cgn_str){NULL, 0};
	q->roles = roles;
	q->n_roles = roles_fill(r, roles);
	q->from = r->client.peer;
}

/* ---- the end ---- */

static void ask_count(const struct gw_req *r, enum gw_hook_kind hook, const char *outcome)
{
	metric_add(METRIC_OF(r->w->shared->telemetry, HOOK_REQUESTS, gw_hook_text(hook), outcome), 1);
}

void gw_ask_audit(const struct gw_req *r, enum gw_hook_kind hook, const char *code)
{
	gw_permit_note(r, hook == GW_HOOK_BEFORE ? "hook.before" : "hook.after", code);
}

void gw_ask_fail(struct gw_req *r, enum gw_hook_kind hook, const char *outcome, const char *why)
{
	struct gw_ask *a = &r->hook->ask;
	a->verdict = (struct hook_verdict){.decision = HOOK_FAILED, .why = why};
	a->answered = true;
	ask_count(r, hook, outcome);
	cgn_log_limited(WARN, "gateway.hook_failed", F_STR("hook", gw_hook_text(hook)),
		F_STRN("id", r->client.id), F_STR("outcome", outcome), F_STR("why", why),
		F_STR("then",
			r->w->rules->hooks.pass ? "it passes (hooks.on_failure)"
						: "it is refused (hooks.on_failure)"));
}

bool gw_ask_is_open(const struct gw_hooking *h)
{
	return h->ask.job != NULL || h->ask.fetch != NULL;
}

static void ask_drop(struct gw_req *r)
{
	struct gw_ask *a = &r->hook->ask;
	gw_hook_client_unref(&a->client);
	cgn_buf_fini(&a->document);
	(void)gw_hook_book(r, &a->booked, 0);
}

void gw_ask_cancel(struct gw_req *r)
{
	struct gw_ask *a = &r->hook->ask;
	webask_cancel(&a->fetch);
	if (a->job != NULL)
		a->job->owner = NULL;
	a->job = NULL;
	ask_drop(r);
	a->answered = false;
}

static void verdict_take(struct gw_req *r, const struct webask_answer *answer)
{
	struct gw_ask *a = &r->hook->ask;
	enum cgn_code code = answer->err->code;
	if (code == CGN_DEADLINE) {
		gw_ask_fail(r, a->hook, "timeout", "it did not answer in time (hooks.timeout)");
	} else if (code == CGN_TOO_LARGE) {
		gw_ask_fail(r, a->hook, "invalid", "its answer is longer than 64 KiB");
	} else if (code == CGN_NO_MEMORY || code == CGN_OVERLOADED) {
		gw_ask_fail(r, a->hook, "no_memory",
			"the router lacks memory or connections for the question");
	} else if (code != CGN_FINE) {
		gw_ask_fail(r, a->hook, "unreachable", answer->err->msg);
		a->verdict.why =
			"it cannot be reached, or cut the connection"; /* The other text is borrowed. */
	} else {
		hook_answer_read(answer->status, answer->body, &a->verdict);
		a->answered = true;
		if (a->verdict.decision == HOOK_FAILED)
			gw_ask_fail(r, a->hook, "invalid", a->verdict.why);
		else
			ask_count(r, a->hook, a->verdict.decision == HOOK_ALLOWED ? "allowed" : "refused");
	}
}

/* ---- sending ---- */

static bool ask_send(struct gw_req *r);

/* In other states another leg is under way that continues the answer: gw_stream comes to the decision later. */
static void ask_wake(struct gw_req *r)
{
	if (r->state == GW_HOOK || r->state == GW_STREAM || r->state == GW_CHECK)
		gw_wake(r);
}

static void on_answer(void *user, const struct webask_answer *answer)
{
	struct gw_hooking *h = user;
	struct gw_req *r = h->r;
	CGN_LIVE(h, GW_HOOKING_TAG);
	struct gw_ask *a = &h->ask;
	a->fetch = NULL;
	if (answer->stale && !a->repeated) {
		a->repeated = true;
		if (ask_send(r))
			return;
	}
	metric_observe(METRIC_OF(r->w->shared->telemetry, HOOK_SECONDS, gw_hook_text(a->hook)),
		cgn_since(cgn_loop_now(r->w->loop), a->since));
	verdict_take(r, answer);
	ask_drop(r);
	ask_wake(r);
}

/* Send the document. False: there is no time left, or it cannot be sent. */
static bool ask_send(struct gw_req *r)
{
	struct gw_ask *a = &r->hook->ask;
	cgn_nsec took = cgn_since(cgn_loop_now(r->w->loop), a->since);
	return took < a->timeout &&
		cgn_ok(gw_hook_client_post(a->client, cgn_buf_view(&a->document), a->timeout - took,
			on_answer, r->hook, &a->fetch, NULL));
}

/* The document is written: send it. */
static void ask_go_on(struct gw_req *r)
{
	struct gw_ask *a = &r->hook->ask;
	bool fits = !a->document.bad && gw_hook_book(r, &a->booked, a->document.cap);
	if (fits && ask_send(r))
		return;
	ask_drop(r);
	if (cgn_since(cgn_loop_now(r->w->loop), a->since) >= a->timeout)
		gw_ask_fail(r, a->hook, "timeout", "its question was not written in time (hooks.timeout)");
	else
		gw_ask_fail(r, a->hook, "no_memory",
			"the router lacks memory for the question (router.max_inflight_body)");
}

/* ---- long bodies, on the thread pool ---- */

static void job_run(void *arg)
{
	struct gw_ask_job *k = arg;
	hook_question_close(&k->document, k->form, cgn_buf_view(&k->body));
}

static void job_free(struct gw_ask_job *k)
{
	cgn_buf_fini(&k->document);
	cgn_buf_fini(&k->body);
	free(k);
}

static void job_done(void *arg)
{
	struct gw_ask_job *k = arg;
	struct gw_hooking *h = k->owner;
	if (h == NULL) {
		job_free(k);
		return;
	}
	CGN_LIVE(h, GW_HOOKING_TAG);
	h->ask.job = NULL;
	h->ask.document = k->document;
	k->document = (struct cgn_buf){0};
	job_free(k);
	ask_go_on(h->r);
	if (h->ask.answered)
		ask_wake(h->r);
}

/* Let the pool write the rest of the document. False: there is no memory for that. */
static bool job_start(struct gw_req *r, const struct hook_question *q)
{
	struct gw_ask *a = &r->hook->ask;
	struct gw_ask_job *k = CGN_NEW(struct gw_ask_job);
	k->owner = r->hook;
	k->form = q->form;
	cgn_buf_str(&k->body, q->body);
	k->document = a->document;
	if (!k->body.bad && gw_hook_book(r, &a->booked, 2 * k->body.cap)) {
		a->document = (struct cgn_buf){0};
		a->job = k;
		cgn_loop_work(r->w->loop, job_run, job_done, k);
		return true;
	}
	k->document = (struct cgn_buf){0};
	job_free(k);
	return false;
}

/* ---- the beginning ---- */

/* Are the bytes of the body read to write the document? */
static bool is_read(enum hook_body form)
{
	return form == HOOK_JSON || form == HOOK_EVENTS || form == HOOK_LINES;
}

void gw_ask_start(struct gw_req *r, enum gw_hook_kind hook, struct gw_hook_client *client, cgn_nsec timeout,
	uint64_t max, const struct hook_question *q)
{
	struct gw_ask *a = &r->hook->ask;
	CGN_MUST(!gw_ask_is_open(r->hook) && !a->answered);
	*a = (struct gw_ask){.hook = hook,
		.document = {.limit = 2 * (size_t)max + DOCUMENT_EXTRA},
		.since = cgn_loop_now(r->w->loop),
		.timeout = timeout};
	if (client == NULL) {
		gw_ask_fail(r, hook, "unreachable", "the router could not make a client for it");
		return;
	}
	a->client = gw_hook_client_ref(client);
	hook_question_open(&a->document, q);
	if (q->body.n > GW_INLINE_BODY && is_read(q->form) && job_start(r, q))
		return;
	hook_question_close(&a->document, q->form, q->body);
	ask_go_on(r);
}

void gw_hook_end(struct gw_req *r)
{
	struct gw_hooking *h = r->hook;
	if (h == NULL)
		return;
	CGN_LIVE(h, GW_HOOKING_TAG);
	gw_ask_cancel(r);
	gw_hook_client_unref(&h->hold.client);
	cgn_buf_fini(&h->hold.bytes);
	(void)gw_hook_book(r, &h->hold.booked, 0);
	cgn_arena_fini(&h->hold.arena);
	r->hook = NULL;
	h->tag = 0;
	free(h);
}
