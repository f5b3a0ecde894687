/* SPDX-License-Identifier: Apache-2.0 */
/* explain_query: collects the decisions recorded by the workers, for the admin port and for cgn-ctl. Each
 * worker is posted a part of the query, searches its own ring on its own loop and posts the part back. No
 * thread blocks and nothing is locked. A query outlives its caller. */
#include <stdlib.h>

#include "base/codec/codec.h"
#include "router/control/service/documents.h"

#define PART_MOST ((size_t)1 << 19) /* Bytes of entries from one worker. */
#define LAST_MOST EXPLAIN_REQUESTS

struct router_explain_query;

struct explain_answer { /* Borrowed until |done| returns. */
	const char *id, *session;
	const struct cgn_buf *found; /* Entries of each worker, for explain_fill. */
	size_t n, most;
	bool brief;                 /* Without the candidates. */
	struct explain_reach reach; /* Reach of all workers; every worker has records from oldest_ms on. */
};

struct query_part {
	struct cgn_post post; /* Posted to the worker and back. */
	struct router_explain_query *q;
	struct gw_worker *w;
	struct explain_reach reach;
};

struct router_explain_query {
	struct cgn_loop *home;
	bool brief;
	char id[EXPLAIN_TEXT + 1];      /* Empty: the latest requests, whatever their id. */
	char session[EXPLAIN_TEXT + 1]; /* Empty: of all sessions. */
	size_t most;
	void (*done)(void *user, const struct explain_answer *a); /* NULL: the query is cancelled. */
	void *user;
	size_t waiting, n;
	struct cgn_buf *found; /* Entries of each part. */
	struct query_part parts[];
};

static void question_free(struct router_explain_query *q)
{
	for (size_t i = 0; i < q->n; i++)
		cgn_buf_fini(&q->found[i]);
	free(q->found);
	free(q);
}

static void reach_merge(struct explain_reach *all, const struct explain_reach *one)
{
	all->decisions += one->decisions;
	all->entries += one->entries;
	all->bytes += one->bytes;
	if (one->oldest_ms > 0 && one->oldest_ms > all->oldest_ms)
		all->oldest_ms = one->oldest_ms; /* Every worker has records from then on. */
}

static void query_finish(struct router_explain_query *q)
{
	struct explain_answer a = {.id = q->id,
		.session = q->session,
		.found = q->found,
		.n = q->n,
		.most = q->most,
		.brief = q->brief};
	for (size_t i = 0; i < q->n; i++)
		reach_merge(&a.reach, &q->parts[i].reach);
	if (q->done != NULL)
		q->done(q->user, &a);
	question_free(q);
}

static void part_on_return(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct router_explain_query *q = CGN_CONTAINER(p, struct query_part, post)->q;
	if (--q->waiting == 0)
		query_finish(q);
}

/* Runs on the worker's loop. */
static void part_search(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct query_part *query_part = CGN_CONTAINER(p, struct query_part, post);
	struct router_explain_query *q = query_part->q;
	struct cgn_buf *found = &q->found[query_part - q->parts];
	found->limit = PART_MOST;
	explain_ring_reach(query_part->w->explain, &query_part->reach);
	if (q->id[0] != '\0')
		explain_ring_find(query_part->w->explain, cgn_str_of(q->id), q->most, found);
	else
		explain_ring_last(query_part->w->explain, cgn_str_of(q->session), q->most, found);
	cgn_loop_post(q->home, p, part_on_return);
}

struct explain_wish {
	struct cgn_str id;      /* Empty: the latest requests. */
	struct cgn_str session; /* Only requests of this session; empty: all requests. */
	size_t last;
	bool brief;
};

/* Query the records of request |wish->id|, or of the last |wish->last| requests, of a session or all. |done|
 * runs once, never inline, unless query_cancel was called before. Fails with CGN_NOT_FOUND when
 * nothing is recorded here, CGN_INVALID when the id cannot be one. */
static CGN_RC query_start(struct router *r, const struct explain_wish *wish,
	void (*done)(void *user, const struct explain_answer *a), void *user,
	struct router_explain_query **out, struct cgn_err *err)
{
	struct cgn_str id = wish->id;
	if (r->workers[0]->explain == NULL)
		return CGN_FAIL(err, NOT_FOUND, "decisions are not recorded here: router.explain_size is 0");
	if (id.n > EXPLAIN_TEXT)
		return CGN_FAIL(err, INVALID, "a request's id has at most %d bytes", EXPLAIN_TEXT);
	if (wish->session.n > EXPLAIN_TEXT)
		return CGN_FAIL(err, INVALID, "a session's id has at most %d bytes", EXPLAIN_TEXT);
	if (id.n > 0 && memchr(id.p, '\0', id.n) != NULL)
		return CGN_FAIL(err, INVALID, "no request's id has a NUL in it");
	struct router_explain_query *q =
		cgn_zeroed(1, sizeof *q + r->n_workers * sizeof(struct query_part), CGN_HERE);
	*q = (struct router_explain_query){.home = r->loop,
		.brief = wish->brief,
		.most = id.n > 0 || wish->last > LAST_MOST ? LAST_MOST : wish->last,
		.done = done,
		.user = user,
		.waiting = r->n_workers,
		.n = r->n_workers,
		.found = CGN_NEW_ARRAY(struct cgn_buf, r->n_workers)};
	(void)cgn_str_copyz(q->id, sizeof q->id, id);
	(void)cgn_str_copyz(q->session, sizeof q->session, wish->session);
	*out = q;
	for (size_t i = 0; i < q->n; i++) {
		q->parts[i] = (struct query_part){.q = q, .w = r->workers[i]};
		cgn_loop_post(r->workers[i]->loop, &q->parts[i].post, part_search);
	}
	return CGN_OK;
}

static void query_cancel(struct router_explain_query **take)
{
	struct router_explain_query *q = CGN_TAKE(take);
	if (q != NULL)
		q->done = NULL;
}

/* ---- the answer ---- */

static void age_text(uint64_t ms, char *out, size_t cap)
{
	uint64_t now = cgn_clock_wall_ms(), s = cgn_since(now, ms) / 1000;
	(void)snprintf(out, cap, "%llu s", (unsigned long long)s);
}

static void reach_fill(const struct explain_reach *reach, Cognitora__V1__ExplainRecord *to)
{
	to->decisions = reach->decisions;
	to->entries = reach->entries;
	to->bytes = reach->bytes;
	to->oldest_ms = reach->oldest_ms;
}

static CGN_RC answer_check(const struct explain_answer *a, struct cgn_err *err)
{
	char ago[32];
	age_text(a->reach.oldest_ms, ago, sizeof ago);
	if (explain_count(a->found, a->n) > 0)
		return CGN_OK;
	if (a->id[0] != '\0')
		return CGN_FAIL(err, NOT_FOUND,
			"no request \"%s\" is on record at this router (any more): the record reaches back %s, %llu decisions were made since the start; "
			"router.explain_size gives it more room",
			a->id, a->reach.oldest_ms > 0 ? ago : "0 s", (unsigned long long)a->reach.decisions);
	if (a->session[0] != '\0')
		return CGN_FAIL(err, NOT_FOUND,
			"no request of the session \"%s\" that has ended is on record at this router (any more); cgn-ctl session ls lists sessions",
			a->session);
	return CGN_OK;
}

/* Return the answer in |t|, which this initializes. */
static Cognitora__V1__ExplainResponse *answer_make(const struct router *r, const struct explain_answer *a,
	struct pb_tree *t)
{
	pb_tree_init(t, SVC_DOCUMENT_LIMIT);
	Cognitora__V1__ExplainResponse *to = PB_NEW(t, explain_response);
	to->router = pb_text(r->id);
	to->record = PB_NEW(t, explain_record);
	if (t->bad)
		return to; /* Both may be the same spare message. */
	reach_fill(&a->reach, to->record);
	explain_fill(a->found, a->n, a->most, a->brief, t, to);
	return to;
}

/* ---- the admin port ---- */

struct admin_wait {
	struct router *r;
	struct svc_admin_call *call;
	struct router_explain_query *q;
};

static void admin_gone(void *user)
{
	struct admin_wait *w = user;
	query_cancel(&w->q);
	free(w);
}

static void admin_answer(void *user, const struct explain_answer *a)
{
	struct admin_wait *w = user;
	struct svc_admin_reply reply = svc_admin_reply_new();
	CGN_ON_EXIT(pb_tree_fini) struct pb_tree t;
	struct cgn_err err;
	const Cognitora__V1__ExplainResponse *rs = answer_make(w->r, a, &t);
	if (cgn_ok(answer_check(a, &err)))
		svc_admin_message(&reply, &t, rs, proto_documents[PROTO_DOCUMENT_EXPLAIN].select);
	else
		svc_admin_error(&reply, 404, "no_request", err.msg);
	svc_admin_done(w->call, &reply);
	free(w);
}

static void admin_ask(struct router *r, const struct explain_wish *wish, struct svc_admin_reply *reply)
{
	struct cgn_err err;
	struct admin_wait *w = CGN_NEW(struct admin_wait);
	cgn_rc rc = query_start(r, wish, admin_answer, w, &w->q, &err);
	if (!cgn_ok(rc)) {
		svc_admin_error(reply, cgn_code_http(rc.code),
			rc.code == CGN_NOT_FOUND ? "no_record" : "failed", err.msg);
		free(w);
		return;
	}
	w->r = r;
	w->call = svc_admin_later(reply, admin_gone, w);
}

static void admin_ask_id(struct router *r, struct cgn_str escaped, struct svc_admin_reply *reply)
{
	char id[3 * EXPLAIN_TEXT];
	if (escaped.n <= sizeof id)
		admin_ask(r, &(struct explain_wish){.id = {id, percent_get(id, escaped)}}, reply);
	else
		svc_admin_error(reply, 400, "bad_id", "a request's id has at most 128 bytes");
}

void router_admin_explain(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct cgn_str rest = h->path, path = cgn_str_split(&rest, '?'),
		       last = http_query_get(h->path, "last");
	char session[3 * EXPLAIN_TEXT];
	struct cgn_str escaped = http_query_get(h->path, "session");
	uint64_t n = 20;
	size_t lead = strlen("/explain/");
	if (path.n > lead && rest.n > 0) {
		svc_admin_error(reply, 400, "bad_query", "/explain/ID takes no parameters");
		return;
	}
	if (path.n > lead) {
		admin_ask_id(r, (struct cgn_str){path.p + lead, path.n - lead}, reply);
		return;
	}
	if (!router_query_check(PROTO_DOCUMENT_EXPLAIN, h,
		    reply)) /* "/explain/" comes here by another route. */
		return;
	CGN_MUST(escaped.n <= sizeof session);
	(void)cgn_str_u64(last, &n);
	admin_ask(r,
		&(struct explain_wish){.last = (size_t)n,
			.session = {session, percent_get(session, escaped)},
			.brief = cgn_str_is(http_query_get(h->path, "detail"), "brief")},
		reply);
}

bool router_fill_explain_response(const struct document_query *q, Cognitora__V1__ExplainResponse *to)
{
	(void)to; /* The workers are asked first. */
	router_admin_explain(q->r, q->h, (struct cgn_str){0}, q->reply);
	return false;
}

/* ---- Control.Explain ---- */

static void call_answer(void *user, const struct explain_answer *a)
{
	struct router_call *k = user;
	CGN_LIVE(k, ROUTER_CALL_TAG);
	CGN_ON_EXIT(pb_tree_fini) struct pb_tree t;
	struct cgn_err err;
	k->question = NULL;
	Cognitora__V1__ExplainResponse *rs = answer_make(k->r, a, &t);
	if (cgn_ok(answer_check(a, &err)))
		router_document_finish(k, PROTO_DOCUMENT_EXPLAIN, &t, rs);
	else
		router_call_finish(k, err.code, err.msg);
}

static void question_stop(struct router_call *k)
{
	query_cancel(&k->question);
}

void router_explain(struct router_call *k, struct cgn_str message)
{
	struct cgn_err err;
	CGN_ON_EXIT(pb_free) Cognitora__V1__ExplainRequest *rq = NULL;
	cgn_rc rc = pb_unpack(&cognitora__v1__explain_request__descriptor, message, &rq, &err);
	if (cgn_ok(rc) && rq->id[0] == '\0' && (rq->last == 0 || rq->last > LAST_MOST))
		rc = CGN_FAIL(&err, INVALID, "ask for an id, or for the last 1 to %d requests", LAST_MOST);
	k->stop = question_stop;
	if (cgn_ok(rc))
		rc = query_start(k->r,
			&(struct explain_wish){.id = cgn_str_of(rq->id),
				.session = cgn_str_of(rq->session),
				.last = rq->last},
			call_answer, k, &k->question, &err);
	if (!cgn_ok(rc))
		router_call_finish(k, rc.code, err.msg);
}
