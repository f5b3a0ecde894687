/* SPDX-License-Identifier: Apache-2.0 */
/* What the kinds of talks are made of. Lengths are in tokens; exponential ones have few that are long. */
#include <stdlib.h>

#include "lab/workload/workload_priv.h"

enum shared { SHARED_CHAT = 1, SHARED_TOOLS, SHARED_SYSTEM, SHARED_RAG, SHARED_DOCUMENT };

/* The |i|-th of the texts that many prompts have: a length of its own. */
static void put_shared(struct talk *t, enum shared what, uint32_t i, uint32_t least, uint32_t span)
{
	uint64_t key = (uint64_t)what << 32 | i;
	workload_talk_put(t, key, least + (uint32_t)(workload_rng_mix(key) % span));
}

static uint32_t about(struct work *w, uint32_t least, double mean_beyond)
{
	return least + (uint32_t)(workload_rng_exponential(&w->dice) * mean_beyond);
}

/* Of a geometric distribution with that mean. */
static uint32_t turns(struct work *w, uint32_t mean)
{
	uint32_t n = 1;
	while (n < 20 * mean && workload_rng_below(&w->dice, mean) != 0)
		n++;
	return n;
}

/* As long as it takes to write it. */
static cgn_nsec written(const struct talk *t)
{
	return t->answer * 15 * CGN_MSEC;
}

static cgn_nsec no_pause(struct work *w, const struct talk *t)
{
	(void)w;
	return written(t);
}

static void chat_begin(struct work *w, struct talk *t)
{
	put_shared(t, SHARED_CHAT, workload_rng_zipf(&w->dice, 4), 300, 1200);
	t->left = turns(w, 6);
}

static void chat_turn(struct work *w, struct talk *t)
{
	workload_talk_say(w, t, about(w, 20, 80));
	t->answer = about(w, 20, 230);
}

static cgn_nsec chat_pause(struct work *w, const struct talk *t)
{
	return written(t) + 2 * CGN_SEC + (cgn_nsec)(workload_rng_exponential(&w->dice) * 20e9);
}

/* One in four splits off the task before it, and has its context so far. */
static void agents_begin(struct work *w, struct talk *t)
{
	if (w->last.n > 0 && workload_rng_below(&w->dice, 4) == 0) {
		for (uint32_t i = 0; i < w->last.n; i++)
			workload_talk_put(t, w->last.pieces[i].key, w->last.pieces[i].tokens);
	} else {
		put_shared(t, SHARED_TOOLS, workload_rng_zipf(&w->dice, 6), 2500, 3500);
		workload_talk_say(w, t, about(w, 100, 400));
	}
	t->left = turns(w, 12);
}

static void agents_turn(struct work *w, struct talk *t)
{
	workload_talk_say(w, t, about(w, 40, 500));
	t->answer = about(w, 20, 100);
}

static cgn_nsec agents_pause(struct work *w, const struct talk *t)
{
	return written(t) + 200 * CGN_MSEC + (cgn_nsec)(workload_rng_exponential(&w->dice) * 2e9);
}

static void shuffle(struct work *w, uint32_t *v, uint32_t n)
{
	for (uint32_t i = n; i > 1; i--) {
		uint32_t k = (uint32_t)workload_rng_below(&w->dice, i), was = v[i - 1];
		v[i - 1] = v[k];
		v[k] = was;
	}
}

/* Different documents, the most popular first. */
static void pick_documents(struct work *w, uint32_t *v, uint32_t n)
{
	for (uint32_t got = 0; got < n;) {
		uint32_t d = workload_rng_zipf(&w->dice, ZIPF_MAX), at = 0;
		while (at < got && v[at] < d)
			at++;
		if (at < got && v[at] == d)
			continue;
		for (uint32_t k = got++; k > at; k--)
			v[k] = v[k - 1];
		v[at] = d;
	}
}

static void rag_begin(struct work *w, struct talk *t)
{
	uint32_t documents[5], n = 2 + (uint32_t)workload_rng_below(&w->dice, 4);
	pick_documents(w, documents, n);
	if (workload_rng_below(&w->dice, 10) < 4)
		shuffle(w, documents, n);
	put_shared(t, SHARED_RAG, 0, 250, 1);
	for (uint32_t i = 0; i < n; i++)
		put_shared(t, SHARED_DOCUMENT, documents[i], 300, 900);
	t->left = 1;
}

static void rag_turn(struct work *w, struct talk *t)
{
	workload_talk_say(w, t, about(w, 15, 30));
	t->answer = about(w, 20, 180);
}

static void shared_begin(struct work *w, struct talk *t)
{
	put_shared(t, SHARED_SYSTEM, workload_rng_zipf(&w->dice, 64), 500, 3500);
	t->left = 1;
}

static void shared_turn(struct work *w, struct talk *t)
{
	workload_talk_say(w, t, about(w, 20, 250));
	t->answer = about(w, 20, 150);
}

const struct kind workload_kinds[WORKLOAD_KINDS] = {
#define WORKLOAD(id, text, talk_turns, begin, turn, pause, help) {text, talk_turns, begin, turn, pause, help},
#include "lab/workload/workloads.def"
#undef WORKLOAD
};
