/* SPDX-License-Identifier: Apache-2.0 */
/* tell: reports what this store holds to each guest that subscribed: a snapshot first, then changes. The
 * memory of a guest is fixed: a guest that falls behind the ring of changes gets a new snapshot. */

#include "joint/kv/kvpeer/kvpeer_priv.h"

#define TELL_EVERY (20 * CGN_MSEC)
#define SCAN_STEP  1024 /* blocks of a snapshot per scan */
#define STEPS      8    /* for one guest per turn of the loop */

#define LOCAL_TIERS (BLOCK_TIER_BIT(BLOCK_RAM) | BLOCK_TIER_BIT(BLOCK_SSD))

struct batch {
	struct kvframe_hold list[KVFRAME_MAX_HOLDS];
	size_t n;
};
static _Thread_local struct batch batch;

void kvpeer_send_buf(struct quic_stream *s, struct cgn_buf *b, bool fin)
{
	const struct iovec iov = {b->p, b->n};
	if (!b->bad)
		quic_send(s, &iov, 1, fin, NULL, NULL);
}

void kvpeer_put_self(struct kvpeer *kp, enum kvframe_type type, struct cgn_buf *out)
{
	const struct kvframe_who who = {kp->instance, cgn_str_of(kp->node), cgn_str_of(kp->rack),
		cgn_str_of(kp->region)};
	kvframe_put_who(out, type, &who);
}

static void batch_add(const struct block_key *k, unsigned tiers)
{
	batch.list[batch.n++] = (struct kvframe_hold){kvframe_short(k), (uint8_t)(tiers & LOCAL_TIERS)};
}

static void tell_add(struct kvpeer_guest *g, const struct block_key *k, unsigned tiers, uint64_t bytes)
{
	batch_add(k, tiers);
	g->told_blocks += tiers != 0;
	g->told_bytes += tiers != 0 ? bytes : 0;
}

/* A scan may return more blocks than requested. Blocks that do not fit are not reported; other peers serve
 * them. */
static void tell_on_scanned(void *user, const struct block_key *k, const struct block_info *info,
	struct cgn_str name)
{
	struct kvpeer_guest *g = user;
	(void)name;
	if (batch.n < KVFRAME_MAX_HOLDS && (info->tiers & LOCAL_TIERS) != 0 &&
		kvpeer_site_may(g->kp, g->site, info->leave))
		tell_add(g, k, info->tiers, info->size);
}

/* The totals of the store would tell another site of blocks that stay here. */
static void tell_set_totals(const struct kvpeer_guest *g, struct kvframe_holds *h)
{
	struct kvstore_stats st;
	if (!kvpeer_is_here(g->site)) {
		h->blocks = g->told_blocks;
		h->bytes = g->told_bytes;
		return;
	}
	kvstore_stats(g->kp->store, &st);
	for (enum block_tier t = BLOCK_RAM; t <= BLOCK_SSD; t++) {
		h->blocks += st.tier[t].blocks;
		h->bytes += st.tier[t].value_bytes;
	}
}

static void tell_send(struct kvpeer_guest *g, bool reset, bool synced)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct kvframe_holds h = {.seq = ++g->seq, .reset = reset, .synced = synced};
	tell_set_totals(g, &h);
	kvframe_put_holds(&b, &h, batch.list, batch.n);
	if (b.bad)
		quic_stream_cancel(&g->tells, KVPEER_CODE_ENOUGH);
	else
		kvpeer_send_buf(g->tells, &b, false);
}

static void tell_begin(struct kvpeer_guest *g)
{
	g->at = kvstore_changes_end(g->kp->store);
	g->cursor = 0;
	g->told_blocks = g->told_bytes = 0;
	g->scanned = false;
	g->begun = true;
}

static bool tell_scan_step(struct kvpeer_guest *g, bool first)
{
	batch.n = 0;
	kvstore_scan(g->kp->store, &g->cursor, SCAN_STEP, tell_on_scanned, g);
	g->scanned = g->cursor == 0;
	if (batch.n > 0 || first || g->scanned)
		tell_send(g, first, g->scanned);
	return true;
}

static bool tell_changes_step(struct kvpeer_guest *g)
{
	static _Thread_local struct block_change changes[SCAN_STEP];
	size_t n = 0;
	batch.n = 0;
	if (!kvstore_changes(g->kp->store, &g->at, changes, CGN_COUNT(changes), &n)) {
		g->begun = false;
		return true;
	}
	/* A removal names a block too, so it is told to those only that may have the block. */
	for (size_t i = 0; i < n; i++)
		if (kvpeer_site_may(g->kp, g->site, changes[i].leave))
			tell_add(g, &changes[i].key, changes[i].tiers, changes[i].size);
	if (batch.n > 0)
		tell_send(g, false, false);
	return n > 0;
}

/* Returns false when there is nothing to report now. */
static bool tell_step(struct kvpeer_guest *g)
{
	bool first = !g->begun;
	if (first)
		tell_begin(g);
	return g->scanned ? tell_changes_step(g) : tell_scan_step(g, first);
}

static void tell_guest(struct kvpeer_guest *g)
{
	for (unsigned i = 0; i < STEPS && g->tells != NULL && !quic_over_mark(g->tells); i++)
		if (!tell_step(g))
			return;
}

void kvpeer_tell_all(struct cgn_timer *t)
{
	struct kvpeer *kp = CGN_CONTAINER(t, struct kvpeer, tell);
	bool any = false;
	CGN_LIVE(kp, KVPEER_TAG);
	cgn_list_each (it, &kp->guests) {
		struct kvpeer_guest *g = CGN_CONTAINER(it, struct kvpeer_guest, link);
		if (g->tells != NULL)
			tell_guest(g);
		any = any || g->tells != NULL;
	}
	if (any)
		cgn_timer_set(t, TELL_EVERY);
}

/* ---- the stream ---- */

static void tell_on_data(struct quic_stream *s, void *user, const uint8_t *p, size_t n, bool fin)
{
	struct kvpeer_guest *g = user;
	(void)s;
	(void)p;
	CGN_LIVE(g, KVPEER_GUEST_TAG);
	if (n > 0 || fin) /* a guest sends nothing after its subscription */
		quic_stream_cancel(&g->tells, KVPEER_CODE_NOT_UNDERSTOOD);
}

static void tell_on_close(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code)
{
	struct kvpeer_guest *g = user;
	(void)s;
	(void)why;
	(void)code;
	CGN_LIVE(g, KVPEER_GUEST_TAG);
	g->tells = NULL;
}

static const struct quic_stream_ops tell_ops = {.on_data = tell_on_data, .on_close = tell_on_close};

void kvpeer_tell(struct kvpeer_guest *g, struct quic_stream *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	if (g->tells != NULL) { /* the later subscription counts */
		quic_stream_cancel(&g->tells, KVPEER_CODE_ENOUGH);
	}
	g->tells = s;
	g->seq = 0;
	g->begun = false;
	quic_stream_take(s, &tell_ops, g);
	quic_priority(s, 0);
	kvpeer_put_self(g->kp, KVFRAME_HELLO, &b);
	kvpeer_send_buf(s, &b, false);
	if (g->kp->tell.at == 0)
		cgn_timer_set(&g->kp->tell, 0);
}
