/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of values for all ports, and the limit of what clients hold. */
#include <stdlib.h>

#include "joint/kv/kvpeer/kvpeer.h"
#include "joint/report/tracing/tracing.h"
#include "kvcached/peers/peers.h"
#include "kvcached/value/value.h"

enum { CHILD_FETCH = 1 };

struct value_read {
	struct kvcached *daemon;
	struct cgn_loop *loop;
	struct block_key key;
	uint32_t worth_ms;
	uint16_t sites;
	struct kvstore_read *read;
	struct peers_fetch *fetch;           /* the fetch from a peer, when no tier has the value */
	cgn_nsec fetched_from;               /* time of its begin */
	const struct tracing_context *trace; /* NULL: the fetch gets no span */
	kvstore_read_done done;
	void *user;
};

static void read_end(struct value_read *r, struct kvstore_block **take, const struct cgn_err *why)
{
	kvstore_read_done done = r->done;
	void *user = r->user;
	free(r);
	done(user, take, why);
}

static void fetch_trace(const struct value_read *r, const struct kvstore_block *block,
	const struct cgn_err *why)
{
	if (r->trace == NULL)
		return;
	struct tracing_span s = {.context = r->trace,
		.id = tracing_child(r->trace, CHILD_FETCH),
		.parent = r->trace->span,
		.name = "kv fetch",
		.kind = TRACING_CLIENT,
		.from = r->fetched_from,
		.to = cgn_clock_now(),
		.error = block == NULL ? cgn_code_text(why->code) : NULL};
	if (block != NULL)
		tracing_number(&s, "cgn.kv.bytes", kvstore_block_size(block));
	tracing_add(r->daemon->tracing, &s);
}

static void read_on_fetched(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct value_read *r = user;
	r->fetch = NULL;
	fetch_trace(r, *take, why);
	read_end(r, take, why);
}

/* Ask a peer when no tier has the whole value. */
static void read_on_store(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct value_read *r = user;
	const struct kvpeer_ask ask = {.priority = 3,
		.sites = r->sites,
		.budget_ms = r->worth_ms != VALUE_WORTH_UNKNOWN ? r->worth_ms : 0};
	struct cgn_err err;
	r->read = NULL;
	r->fetched_from = cgn_clock_now();
	if (*take == NULL && r->worth_ms != VALUE_HERE_ONLY &&
		(why->code == CGN_NOT_FOUND || why->code == CGN_STORAGE) &&
		cgn_ok(peers_fetch(r->daemon, r->loop, &r->key, &ask, read_on_fetched, r, &r->fetch, &err)))
		return;
	read_end(r, take, why);
}

struct value_read *value_get(struct kvcached *d, struct cgn_loop *l, const struct block_key *k,
	uint32_t worth_ms, uint16_t sites, kvstore_read_done done, void *user)
{
	struct value_read *r = CGN_NEW(struct value_read);
	CGN_LIVE(d, KVCACHED_TAG);
	*r = (struct value_read){.daemon = d,
		.loop = l,
		.key = *k,
		.worth_ms = worth_ms,
		.sites = sites,
		.done = done,
		.user = user};
	r->read = kvstore_get(d->store, l, k, read_on_store, r);
	return r;
}

void value_read_trace(struct value_read *r, const struct tracing_context *parent)
{
	r->trace = parent;
}

void value_read_cancel(struct value_read **take)
{
	struct value_read *r = CGN_TAKE(take);
	if (r == NULL)
		return;
	if (r->read != NULL)
		kvstore_read_cancel(&r->read);
	peers_fetch_cancel(&r->fetch);
	free(r);
}

bool value_lookup(struct kvcached *d, const struct block_key *k, bool peers, uint16_t sites,
	struct block_info *out)
{
	CGN_LIVE(d, KVCACHED_TAG);
	if (kvstore_lookup(d->store, k, out))
		return true;
	if (!peers || peers_nearest(d, k, sites) == NULL)
		return false;
	*out = (struct block_info){.tiers = BLOCK_TIER_BIT(BLOCK_REMOTE)};
	return true;
}

uint64_t value_pin_until(uint64_t for_ms)
{
	uint64_t now = cgn_clock_wall_ms();
	if (for_ms == 0)
		return 0;
	return for_ms < UINT64_MAX - now ? now + for_ms : UINT64_MAX;
}

bool value_hold(struct kvcached *d, uint64_t bytes)
{
	CGN_LIVE(d, KVCACHED_TAG);
	if (atomic_fetch_add(&d->held, bytes) + bytes <= d->held_max)
		return true;
	atomic_fetch_sub(&d->held, bytes);
	return false;
}

void value_unhold(struct kvcached *d, uint64_t bytes)
{
	CGN_MUST(atomic_fetch_sub(&d->held, bytes) >= bytes);
}
