/* SPDX-License-Identifier: Apache-2.0 */
/* How sessions of each kind begin and continue. Lengths are in tokens; exponentially distributed lengths are
 * rarely long. */

#include "lab/workload/workload_priv.h"

enum shared_text { SHARED_CHAT = 1, SHARED_TOOLS, SHARED_SYSTEM, SHARED_RAG, SHARED_DOCUMENT };

/* Append the |i|-th of the texts shared by many prompts; the text determines its length. */
static void put_shared(struct workload_session *t, enum shared_text what, uint32_t i, uint32_t least,
	uint32_t span)
{
	uint64_t key = (uint64_t)what << 32 | i;
	workload_session_put(t, key, least + (uint32_t)(workload_rng_mix(key) % span));
}

static uint32_t about_tokens(struct workload_run *w, uint32_t least, double mean_beyond)
{
	return least + (uint32_t)(workload_rng_exponential(&w->rng) * mean_beyond);
}

/* Draw from a geometric distribution with this mean. */
static uint32_t draw_turns(struct workload_run *w, uint32_t mean)
{
	uint32_t n = 1;
	while (n < 20 * mean && workload_rng_below(&w->rng, mean) != 0)
		n++;
	return n;
}

/* Time that a person takes to write the message. */
static cgn_nsec writing_time(const struct workload_session *t)
{
	return t->answer * 15 * CGN_MSEC;
}

static cgn_nsec no_pause(struct workload_run *w, const struct workload_session *t)
{
	(void)w;
	return writing_time(t);
}

static void chat_begin(struct workload_run *w, struct workload_session *t)
{
	put_shared(t, SHARED_CHAT, workload_rng_zipf(&w->rng, 4), 300, 1200);
	t->left = draw_turns(w, 6);
}

static void chat_turn(struct workload_run *w, struct workload_session *t)
{
	workload_session_say(w, t, about_tokens(w, 20, 80));
	t->answer = about_tokens(w, 20, 230);
}

static cgn_nsec chat_pause(struct workload_run *w, const struct workload_session *t)
{
	return writing_time(t) + 2 * CGN_SEC + (cgn_nsec)(workload_rng_exponential(&w->rng) * 20e9);
}

/* A quarter of the sessions split off the session before them and begin with that session's context. */
static void agents_begin(struct workload_run *w, struct workload_session *t)
{
	if (w->last.n > 0 && workload_rng_below(&w->rng, 4) == 0) {
		for (uint32_t i = 0; i < w->last.n; i++)
			workload_session_put(t, w->last.pieces[i].key, w->last.pieces[i].tokens);
	} else {
		put_shared(t, SHARED_TOOLS, workload_rng_zipf(&w->rng, 6), 2500, 3500);
		workload_session_say(w, t, about_tokens(w, 100, 400));
	}
	t->left = draw_turns(w, 12);
}

static void agents_turn(struct workload_run *w, struct workload_session *t)
{
	workload_session_say(w, t, about_tokens(w, 40, 500));
	t->answer = about_tokens(w, 20, 100);
}

static cgn_nsec agents_pause(struct workload_run *w, const struct workload_session *t)
{
	return writing_time(t) + 200 * CGN_MSEC + (cgn_nsec)(workload_rng_exponential(&w->rng) * 2e9);
}

static void shuffle_documents(struct workload_run *w, uint32_t *v, uint32_t n)
{
	for (uint32_t i = n; i > 1; i--) {
		uint32_t k = (uint32_t)workload_rng_below(&w->rng, i), was = v[i - 1];
		v[i - 1] = v[k];
		v[k] = was;
	}
}

/* Draw |n| different documents, the most popular first. */
static void pick_documents(struct workload_run *w, uint32_t *v, uint32_t n)
{
	for (uint32_t got = 0; got < n;) {
		uint32_t d = workload_rng_zipf(&w->rng, ZIPF_MAX), at = 0;
		while (at < got && v[at] < d)
			at++;
		if (at < got && v[at] == d)
			continue;
		for (uint32_t k = got++; k > at; k--)
			v[k] = v[k - 1];
		v[at] = d;
	}
}

static void rag_begin(struct workload_run *w, struct workload_session *t)
{
	uint32_t documents[5], n = 2 + (uint32_t)workload_rng_below(&w->rng, 4);
	pick_documents(w, documents, n);
	if (workload_rng_below(&w->rng, 10) < 4)
		shuffle_documents(w, documents, n);
	put_shared(t, SHARED_RAG, 0, 250, 1);
	for (uint32_t i = 0; i < n; i++)
		put_shared(t, SHARED_DOCUMENT, documents[i], 300, 900);
	t->left = 1;
}

static void rag_turn(struct workload_run *w, struct workload_session *t)
{
	workload_session_say(w, t, about_tokens(w, 15, 30));
	t->answer = about_tokens(w, 20, 180);
}

static void shared_begin(struct workload_run *w, struct workload_session *t)
{
	put_shared(t, SHARED_SYSTEM, workload_rng_zipf(&w->rng, 64), 500, 3500);
	t->left = 1;
}

static void shared_turn(struct workload_run *w, struct workload_session *t)
{
	workload_session_say(w, t, about_tokens(w, 20, 250));
	t->answer = about_tokens(w, 20, 150);
}

static void documents_begin(struct workload_run *w, struct workload_session *t)
{
	workload_session_say(w, t, about_tokens(w, 4000, 6000));
	t->left = 1;
}

static void documents_turn(struct workload_run *w, struct workload_session *t)
{
	workload_session_say(w, t, about_tokens(w, 15, 30));
	t->answer = about_tokens(w, 100, 200);
}

const struct workload_kind_row workload_kinds[WORKLOAD_KINDS] = {
#define WORKLOAD(id, text, session_turns, begin, turn, pause, help) \
	{text, session_turns, begin, turn, pause, help},
#include "lab/workload/workloads.def"
#undef WORKLOAD
};
