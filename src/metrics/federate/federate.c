/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics/federate/federate.h"

#include <stdlib.h>
#include <string.h>

#include "base/codec/codec.h"
#include "base/core/list.h"
#include "metrics/metrics.h"
#include "policy/node/exposition/exposition.h"

#define FEDERATE_TAG 0xfede4a7eU
#define ANSWER_TAG   0xfede4a7fU
#define PIECE_BYTES \
	((size_t)256 << 10) /* Bytes that are handed to the client at once, and one family of a target. */

struct federate {
	uint32_t tag;
	struct cgn_loop *loop;
	struct scrape *scrape;
	struct metric_cell *seconds;
	struct cgn_link answers;
	size_t n;
};

struct federate_answer {
	uint32_t tag;
	struct federate *all;
	struct cgn_link link;
	struct svc_admin_call *call;
	struct exposition_match *match;
	struct scrape_page **held;
	const struct exposition_page **pages;
	size_t n;
	struct exposition_merge merge;
	struct cgn_buf piece;
	struct cgn_timer go; /* Writes on, on the next turn. */
	cgn_nsec since;
	struct cgn_grave grave;
};

static void answer_release(struct cgn_grave *g)
{
	struct federate_answer *a = CGN_CONTAINER(g, struct federate_answer, grave);
	a->tag = 0;
	free(a);
}

static void answer_drop(struct federate_answer *a)
{
	struct federate *f = a->all;
	cgn_timer_cancel(&a->go);
	metric_observe(f->seconds, cgn_since(cgn_loop_now(f->loop), a->since));
	exposition_merge_end(&a->merge);
	exposition_match_free(&a->match);
	scrape_pages_drop(&a->held, a->n);
	free(a->pages);
	cgn_buf_fini(&a->piece);
	cgn_list_drop(&a->link);
	f->n--;
	cgn_loop_bury(f->loop, &a->grave, answer_release);
}

static void answer_gone(void *user)
{
	struct federate_answer *a = user;
	CGN_LIVE(a, ANSWER_TAG);
	answer_drop(a);
}

/* Write one piece; the next one follows on the next turn, or when the client has taken this one. */
static void on_go(struct cgn_timer *t)
{
	struct federate_answer *a = CGN_CONTAINER(t, struct federate_answer, go);
	CGN_LIVE(a, ANSWER_TAG);
	bool more = true;
	a->piece.n = 0;
	while (more && !a->piece.bad && a->piece.n < PIECE_BYTES)
		more = exposition_merge_next(&a->merge, &a->piece);
	if (a->piece.bad) {
		svc_admin_cut(a->call);
		answer_drop(a);
		return;
	}
	bool takes = a->piece.n == 0 || svc_admin_piece(a->call, a->piece.p, a->piece.n);
	if (!more) {
		svc_admin_end(a->call);
		answer_drop(a);
	} else if (takes) {
		cgn_timer_set(t, 0);
	}
}

static void answer_drained(void *user)
{
	struct federate_answer *a = user;
	CGN_LIVE(a, ANSWER_TAG);
	cgn_timer_set(&a->go, 0);
}

/* Read the parameters match[] of the query; others are not for us. */
static CGN_RC matches_read(struct cgn_str path, struct exposition_match **out, struct cgn_err *err)
{
	struct cgn_str rest = path;
	(void)cgn_str_split(&rest, '?');
	while (rest.p != NULL && rest.n > 0) {
		char key[64], value[2048];
		struct cgn_str pair = cgn_str_split(&rest, '&'), name = cgn_str_split(&pair, '=');
		if (name.n > sizeof key ||
			!cgn_str_is((struct cgn_str){key, percent_get(key, name)}, "match[]"))
			continue;
		if (pair.n > sizeof value)
			return CGN_FAIL(err, INVALID, "a match[] is longer than %zu bytes", sizeof value);
		for (size_t i = 0; i < pair.n; i++)
			value[i] = pair.p[i] == '+' ? ' ' : pair.p[i];
		size_t n = percent_get(value, (struct cgn_str){value, pair.n});
		CGN_TRY(exposition_match_add(out, (struct cgn_str){value, n}, err));
	}
	return CGN_OK;
}

static CGN_RC answer_make(struct federate *f, const struct http_head *h, struct federate_answer *a,
	struct cgn_err *err)
{
	CGN_TRY(matches_read(h->path, &a->match, err));
	a->held = scrape_pages(f->scrape, &a->n);
	a->pages = CGN_NEW_ARRAY(const struct exposition_page *, a->n);
	for (size_t i = 0; i < a->n; i++)
		a->pages[i] = a->held[i]->page;
	exposition_merge_begin(&a->merge, a->pages, a->n, a->match);
	return CGN_OK;
}

void federate_answer(struct federate *f, const struct http_head *h, struct svc_admin_reply *r)
{
	const struct http_field fields[] = {{CGN_STR("content-type"),
						    CGN_STR("text/plain; version=0.0.4; charset=utf-8")},
		{CGN_STR("cache-control"), CGN_STR("no-store")}};
	struct cgn_err err;
	CGN_LIVE(f, FEDERATE_TAG);
	if (f->n == FEDERATE_AT_ONCE) {
		svc_admin_error(r, 503, "busy", "8 answers are under way: scrape again later");
		return;
	}
	struct federate_answer *a = CGN_NEW(struct federate_answer);
	*a = (struct federate_answer){.tag = ANSWER_TAG, .all = f, .since = cgn_loop_now(f->loop)};
	cgn_timer_init(&a->go, f->loop, on_go);
	cgn_list_push(&f->answers, &a->link);
	f->n++;
	if (!cgn_ok(answer_make(f, h, a, &err))) {
		svc_admin_error(r, cgn_code_http(err.code),
			err.code == CGN_INVALID ? "invalid_match" : "no_memory", err.msg);
		answer_drop(a);
		return;
	}
	a->call = svc_admin_later(r, answer_gone, a);
	svc_admin_stream(a->call, 200, fields, CGN_COUNT(fields), answer_drained);
	cgn_timer_set(&a->go, 0);
}

struct federate *federate_new(struct cgn_loop *l, struct telemetry *t, struct scrape *s)
{
	struct federate *f = CGN_NEW(struct federate);
	*f = (struct federate){.tag = FEDERATE_TAG,
		.loop = l,
		.scrape = s,
		.seconds = METRIC_ONE(t, FEDERATE_SECONDS)};
	cgn_list_init(&f->answers);
	return f;
}

void federate_free(struct federate **take)
{
	struct federate *f = CGN_TAKE_LIVE(take, FEDERATE_TAG);
	if (f == NULL)
		return;
	cgn_list_each_safe (l, &f->answers) {
		struct federate_answer *a = CGN_CONTAINER(l, struct federate_answer, link);
		svc_admin_cut(a->call);
		answer_drop(a);
	}
	f->tag = 0;
	free(f);
}
