/* SPDX-License-Identifier: Apache-2.0 */
/* summary_tell: make the sets of blocks that peers are told, a part of the index in each turn. */
#include <stdlib.h>

#include "base/log/log.h"
#include "router/control/control/summaries.h"
#include "router/shared/peers/peers.h"
#include "router/shared/peers/summaries.h"

#define TURN_PLACES 32768 /* places of the index in a turn: about a millisecond */
#define TURN_EVERY  (5 * CGN_MSEC)
#define LOOK_EVERY  (100 * CGN_MSEC)
#define ASKED_SPAN \
	(60 * CGN_SEC) /* A peer that has not asked for so long, or for 4 intervals, is told nothing new. */

struct router_tell {
	struct router *r;
	cgn_nsec interval;
	struct cgn_timer timer;
	struct gw_peer *peer; /* The set that is being made is for this one; NULL: none. */
	size_t turn;          /* Place of the peer that is looked at next. */
	unsigned part, shift;
	struct kvindex_nodes nodes;
	struct peer_draft draft;
	struct {
		cgn_nsec began; /* 0: never. */
		unsigned shift;
	} of[CLUSTER_PEERS];
};

/* Mark the nodes that are ready for a model that the peer may ask for. */
static void nodes_mark(struct router_tell *t)
{
	const struct cluster_view *v = t->r->published.view;
	t->nodes = (struct kvindex_nodes){0};
	for (size_t i = 0; i < v->n_models; i++) {
		const struct view_model *m = &v->models[i];
		for (size_t k = 0; gw_peer_may_ask(t->peer, m->name) && k < m->n_ready; k++)
			if (m->ready[k]->fed)
				t->nodes.bits[m->ready[k]->index_id / 64] |= UINT64_C(1)
					<< m->ready[k]->index_id % 64;
	}
}

static size_t place_of(const struct router_tell *t)
{
	return (size_t)(t->peer - t->r->shared.peers->v);
}

static void set_begin(struct router_tell *t)
{
	peer_draft_drop(&t->draft);
	t->shift = t->of[place_of(t)].shift;
	t->part = 0;
	nodes_mark(t);
}

/* Choose the next peer whose set is due. */
static bool peer_next(struct router_tell *t)
{
	struct gw_peers *peers = t->r->shared.peers;
	const cgn_nsec now = cgn_loop_now(t->r->loop);
	const cgn_nsec span = 4 * t->interval > ASKED_SPAN ? 4 * t->interval : ASKED_SPAN;
	for (size_t i = 0; i < peers->n; i++) {
		size_t at = (t->turn + i) % peers->n;
		struct gw_peer *p = &peers->v[at];
		if (p->listen == NULL || p->summaries == NULL ||
			(t->of[at].began > 0 && cgn_since(now, t->of[at].began) < t->interval) ||
			!gw_summaries_is_asked(p->summaries, now, span))
			continue;
		t->peer = p;
		t->turn = at + 1;
		t->of[at].began = now;
		set_begin(t);
		return true;
	}
	return false;
}

static void block_take(void *user, uint64_t digest)
{
	struct router_tell *t = user;
	if (peer_sampled(digest, t->shift))
		peer_draft_add(&t->draft, peer_fingerprint(digest));
}

static void set_end(struct router_tell *t)
{
	unsigned *shift = &t->of[place_of(t)].shift;
	struct peer_set *set = peer_draft_finish(&t->draft);
	uint32_t n = set != NULL ? set->n : 0;
	if (set == NULL)
		cgn_log_limited(WARN, "router.summary_not_made", F_STR("peer", t->peer->name),
			F_U64("shift", t->shift), F_STR("then", "the peer is told the one before"));
	else
		gw_summaries_tell(t->peer->summaries, &set, t->shift, cgn_loop_now(t->r->loop));
	if (*shift > 0 && n < PEER_BLOCKS / 4)
		*shift -= 1;
	t->peer = NULL;
}

static void on_turn(struct cgn_timer *timer)
{
	struct router_tell *t = CGN_CONTAINER(timer, struct router_tell, timer);
	if (t->peer == NULL && !peer_next(t)) {
		cgn_timer_set(timer, LOOK_EVERY);
		return;
	}
	for (size_t done = 0; t->part < KVINDEX_PARTS && done < TURN_PLACES; t->part++) {
		done += 1 + kvindex_part(t->r->shared.choice.index, &t->nodes, t->part, block_take, t);
		peer_draft_part(&t->draft);
	}
	if (t->draft.bad && t->shift < PEER_SHIFT) { /* More blocks than a set has: one in twice as many. */
		t->of[place_of(t)].shift = t->shift + 1;
		set_begin(t);
	} else if (t->part == KVINDEX_PARTS) {
		set_end(t);
	}
	cgn_timer_set(timer, TURN_EVERY);
}

struct router_tell *router_tell_open(struct router *r, cgn_nsec interval)
{
	struct router_tell *t = CGN_NEW(struct router_tell);
	t->r = r;
	t->interval = interval;
	cgn_timer_init(&t->timer, r->loop, on_turn);
	cgn_timer_set(&t->timer, LOOK_EVERY);
	return t;
}

void router_tell_close(struct router_tell **take)
{
	struct router_tell *t = CGN_TAKE(take);
	if (t == NULL)
		return;
	cgn_timer_cancel(&t->timer);
	peer_draft_drop(&t->draft);
	free(t);
}
