/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/peers/summaries.h"

#include <pthread.h>
#include <stdlib.h>

#include "io/os/loop/loop.h"
#include "router/shared/peers/peers.h"

#define SUMMARIES_TAG 0x64e30701U
#define WHOLE_EVERY   CGN_SEC
#define OLD_SPAN \
	(60 * CGN_SEC) /* All are told version 1 for so long after a router asked that reads no other. */

struct gw_summaries {
	uint32_t tag;
	pthread_mutex_t lock; /* Guards all below; held for no longer than the copy of changes. */
	struct gw_known *known;
	struct peer_trust trust;
	struct peer_journal journal;
	cgn_nsec asked_at, whole_at; /* 0: never. */
	cgn_nsec old_at;             /* When a router last asked that reads version 1 alone; 0: never. */
};

/* ---- summaries that came ---- */

struct gw_known *gw_known_new(const struct gw_peer *peer, const struct peer_summary *s, struct peer_set **set)
{
	struct gw_known *k = CGN_NEW(struct gw_known);
	char *at = k->names;
	atomic_init(&k->refs, 1);
	k->set = *set;
	*set = NULL;
	k->shift = s->shift;
	k->generation = s->generation;
	k->whole = s->base == 0;
	k->n_models = s->n_models;
	for (size_t i = 0; i < s->n_models; i++) {
		struct gw_known_model *m = &k->models[i];
		m->load = s->models[i];
		m->load.name.p = memcpy(at, s->models[i].name.p, m->load.name.n);
		at += m->load.name.n;
		for (size_t j = 0; j < peer->n_models; j++)
			if (cgn_str_eq(peer->models[j].theirs, m->load.name))
				m->open += atomic_load_explicit(&peer->models[j].open, memory_order_relaxed);
	}
	return k;
}

void gw_known_unref(struct gw_known **take)
{
	struct gw_known *k = CGN_TAKE(take);
	if (k == NULL || atomic_fetch_sub_explicit(&k->refs, 1, memory_order_acq_rel) > 1)
		return;
	peer_set_unref(&k->set);
	free(k);
}

const struct gw_known_model *gw_known_model(const struct gw_known *k, struct cgn_str theirs)
{
	for (size_t i = 0; i < k->n_models; i++)
		if (cgn_str_eq(k->models[i].load.name, theirs))
			return &k->models[i];
	return NULL;
}

/* ---- both sides ---- */

struct gw_summaries *gw_summaries_new(void)
{
	struct gw_summaries *r = CGN_NEW(struct gw_summaries);
	r->tag = SUMMARIES_TAG;
	(void)pthread_mutex_init(&r->lock, NULL);
	return r;
}

void gw_summaries_free(struct gw_summaries **take)
{
	struct gw_summaries *r = CGN_TAKE_LIVE(take, SUMMARIES_TAG);
	if (r == NULL)
		return;
	gw_known_unref(&r->known);
	peer_journal_fini(&r->journal);
	(void)pthread_mutex_destroy(&r->lock);
	r->tag = 0;
	free(r);
}

static void summaries_lock(struct gw_summaries *r)
{
	CGN_LIVE(r, SUMMARIES_TAG);
	(void)pthread_mutex_lock(&r->lock);
}

static void summaries_unlock(struct gw_summaries *r)
{
	(void)pthread_mutex_unlock(&r->lock);
}

struct gw_known *gw_summaries_known(struct gw_summaries *r)
{
	summaries_lock(r);
	struct gw_known *k = r->known;
	if (k != NULL)
		atomic_fetch_add_explicit(&k->refs, 1, memory_order_relaxed);
	summaries_unlock(r);
	return k;
}

void gw_summaries_know(struct gw_summaries *r, struct gw_known **take)
{
	summaries_lock(r);
	struct gw_known *before = r->known;
	r->known = *take;
	*take = NULL;
	summaries_unlock(r);
	gw_known_unref(&before);
}

struct peer_trust gw_summaries_trust(struct gw_summaries *r)
{
	summaries_lock(r);
	struct peer_trust t = r->trust;
	summaries_unlock(r);
	return t;
}

bool gw_summaries_learn(struct gw_summaries *r, const struct peer_forecast *f, const struct peer_shown *s,
	cgn_nsec now)
{
	summaries_lock(r);
	bool demoted = peer_trust_learn(&r->trust, f, s, now);
	summaries_unlock(r);
	return demoted;
}

/* The upper bits are random, so that a number of another run is known by none. */
static uint64_t generation_first(void)
{
	uint64_t v;
	cgn_random(&v, sizeof v);
	return (v >> 1 & ~UINT64_C(0xffffffff)) + 1;
}

void gw_summaries_tell(struct gw_summaries *r, struct peer_set **take, unsigned shift, cgn_nsec now)
{
	uint64_t first = generation_first();
	summaries_lock(r);
	const bool old = r->old_at > 0 && r->old_at + OLD_SPAN > now;
	peer_journal_add(&r->journal, take, shift, old ? 1 : PEER_VERSION, first);
	summaries_unlock(r);
}

bool gw_summaries_is_asked(struct gw_summaries *r, cgn_nsec now, cgn_nsec span)
{
	summaries_lock(r);
	bool asked = r->asked_at > 0 && r->asked_at + span > now;
	summaries_unlock(r);
	return asked;
}

CGN_RC gw_summaries_answer(struct gw_summaries *r, const struct gw_summaries_question *q, cgn_nsec now,
	struct peer_summary *s, struct cgn_buf *out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf sets = {0};
	CGN_ON_EXIT(peer_set_unref) struct peer_set *whole = NULL;
	summaries_lock(r);
	peer_journal_ask(&r->journal, peer_journal_pick(&r->journal, q->since, PEER_VIEWS), q->version, s,
		&whole, &sets);
	bool soon = whole != NULL && r->whole_at > 0 && r->whole_at + WHOLE_EVERY > now;
	r->asked_at = now;
	if (q->version < PEER_VERSION)
		r->old_at = now;
	if (whole != NULL && !soon)
		r->whole_at = now;
	summaries_unlock(r);
	if (soon)
		return CGN_FAIL(err, OVERLOADED, "a whole summary was told within the last second");
	peer_summary_put(s, whole, cgn_buf_view(&sets), out);
	return sets.bad || out->bad ? CGN_FAIL(err, NO_MEMORY, "out of memory") : CGN_OK;
}
