/* SPDX-License-Identifier: Apache-2.0 */
/* pools: from the computed prompt to the decode node. */
#include "lab/replay/replay_priv.h"

static struct replay_flight *flight_of(struct cgn_link *l)
{
	return CGN_CONTAINER(l, struct replay_flight, link);
}

bool pools_exist(const struct replay *r)
{
	return r->cfg->prefill_nodes > 0 && r->cfg->rules->disagg.enabled;
}

static void moving_insert(struct replay *r, struct replay_flight *f)
{
	struct cgn_link *at = r->flights.moving.prev;
	while (at != &r->flights.moving && flight_of(at)->arrives > f->arrives)
		at = at->prev;
	cgn_list_drop(&f->link);
	cgn_list_push_front(at, &f->link); /* Behind |at|. */
}

/* Send the KV of |tokens| tokens once both nodes are done with their earlier transfers. */
static void transfer_begin(struct replay *r, struct replay_flight *f, uint32_t tokens)
{
	struct replay_server *from = &r->nodes[f->prefill_node], *to = &r->nodes[f->node];
	double bytes = (double)tokens * r->cfg->rules->disagg.token_bytes;
	cgn_nsec start = r->now;
	start = from->link_free > start ? from->link_free : start;
	start = to->link_free > start ? to->link_free : start;
	f->arrives = start + r->cfg->handoff + (cgn_nsec)(bytes / r->cfg->bandwidth * 1e9);
	from->link_free = to->link_free = f->arrives;
	r->result->moved_tokens += tokens;
	moving_insert(r, f);
}

/* Choose the decode node of |f|. False: none has room. */
static bool decode_place(struct replay *r, struct replay_flight *f)
{
	struct chooser_ask ask = replay_ask(r, f->call.request);
	ask.handoff = f->handoff;
	ask.from = f->from;
	struct chooser_pick_result pick = chooser_pick(r->chooser, &ask);
	if (pick.verdict != ROUTE_PICKED)
		return false;
	uint32_t tokens = (uint32_t)pick.cands[pick.index].handed_tokens;
	f->leg = REPLAY_DECODE;
	f->ticket = (struct chooser_ticket){0};
	chooser_book(r->chooser, &ask, &pick, &f->ticket);
	f->node = replay_node_of(r, f->ticket.slot);
	transfer_begin(r, f, tokens);
	return true;
}

void pools_prompt_done(struct replay *r, struct replay_flight *f)
{
	chooser_release(r->chooser, &f->ticket, r->now);
	cgn_list_drop(&f->link);
	cgn_list_push(&r->flights.computed, &f->link);
	pools_serve(r);
}

void pools_serve(struct replay *r)
{
	struct cgn_link *l;
	while ((l = cgn_list_first(&r->flights.computed)) != NULL && decode_place(r, flight_of(l)))
		;
}

cgn_nsec pools_next(const struct replay *r)
{
	return cgn_list_empty(&r->flights.moving) ? UINT64_MAX : flight_of(r->flights.moving.next)->arrives;
}

void pools_arrive(struct replay *r)
{
	struct replay_flight *f = flight_of(r->flights.moving.next);
	const struct chooser_ask ask = replay_ask(r, f->call.request);
	cgn_list_drop(&f->link);
	cgn_list_push(&r->flights.open, &f->link);
	replay_submit(r, f, (uint32_t)ask.blocks);
}
