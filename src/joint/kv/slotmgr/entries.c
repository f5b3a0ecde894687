/* SPDX-License-Identifier: Apache-2.0 */
/* entries: the slot entries in the node's block store, read into the slot directory as the store reports their
 * keys. */
#include <stdlib.h>

#include "joint/kv/slotmgr/slotmgr_priv.h"

struct entry_fetch {
	struct slotmgr *mgr;
	struct kvclient_call *call;
	struct cgn_link link; /* In slot_entries.fetches */
};

static void entry_fetch_more(struct slotmgr *m);

/* ---- blocks for routers ---- */

static void on_directory_changed(void *user, uint64_t digest, enum block_tier tier, bool held)
{
	struct slotmgr *m = user;
	if (held)
		(void)holdings_add(m->holdings, digest, tier).code;
	else
		(void)holdings_drop(m->holdings, digest, tier);
}

/* ---- reading ---- */

void slot_answer_copy(const struct kvclient_answer *a, struct cgn_buf *out)
{
	struct kvclient_lease *lease = a->lease;
	size_t n = 0;
	const struct iovec *iov = lease != NULL ? kvclient_lease_iov(lease, &n) : NULL;
	for (size_t i = 0; i < n; i++)
		cgn_buf_add(out, iov[i].iov_base, iov[i].iov_len);
	kvclient_lease_release(&lease);
}

bool slot_entries_read(struct slotmgr *m, const struct kvclient_answer *a, struct slot_entry *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.limit = SLOT_ENTRY_MAX_BYTES};
	slot_answer_copy(a, &b);
	return a->err->code == CGN_FINE && !b.bad &&
		cgn_ok(slot_entry_read(cgn_buf_view(&b), m->entries.words, out, NULL));
}

static void entry_fetch_end(struct entry_fetch *g)
{
	kvclient_call_cancel(&g->call);
	cgn_list_drop(&g->link);
	g->mgr->entries.n_fetches--;
	free(g);
}

static void on_entry(void *user, const struct kvclient_answer *a)
{
	struct entry_fetch *g = user;
	struct slotmgr *m = g->mgr;
	struct slot_entry c;
	CGN_LIVE(m, SLOTMGR_TAG);
	g->call = NULL;
	if (slot_entries_read(m, a, &c))
		(void)slot_directory_add(m->entries.directory, &c, NULL).code;
	metric_set(m->stats.states, (double)slot_directory_states(m->entries.directory));
	entry_fetch_end(g);
	entry_fetch_more(m);
}

static bool entry_fetch_start(struct slotmgr *m, uint64_t id)
{
	struct entry_fetch *g = CGN_NEW(struct entry_fetch);
	const struct block_key key = slotmgr_key(m->fingerprint.keys.entry, id, 0);
	g->mgr = m;
	if (!cgn_ok(kvclient_get(slotmgr_kvclient(m), &key, KVCLIENT_HERE_ONLY, (struct cgn_str){0}, on_entry,
		    g, &g->call, NULL))) {
		free(g);
		return false;
	}
	cgn_list_push(&m->entries.fetches, &g->link);
	m->entries.n_fetches++;
	return true;
}

/* Few at a time: after a start thousands may be wanted. */
static void entry_fetch_more(struct slotmgr *m)
{
	struct slot_entries *e = &m->entries;
	while (slotmgr_kvclient(m) != NULL && e->n_fetches < SLOTMGR_MAX_GETS && e->n_wanted > 0)
		if (!entry_fetch_start(m, e->wanted[--e->n_wanted]))
			return;
}

static void entry_want(struct slot_entries *e, uint64_t id)
{
	if (e->n_wanted == e->cap_wanted) {
		size_t cap = e->cap_wanted > 0 ? 2 * e->cap_wanted : 64;
		if (cap > SLOT_DIRECTORY_MAX_STATES)
			return;
		e->wanted = CGN_GROWN(e->wanted, cap);
		e->cap_wanted = cap;
	}
	e->wanted[e->n_wanted++] = id;
}

/* ---- the directory ---- */

void slot_entries_clear(struct slotmgr *m)
{
	m->entries.n_wanted = 0;
	for (struct cgn_link *l; (l = cgn_list_first(&m->entries.fetches)) != NULL;)
		entry_fetch_end(CGN_CONTAINER(l, struct entry_fetch, link));
	slot_directory_clear(m->entries.directory);
	metric_set(m->stats.states, 0);
}

void slot_entries_changed(struct slotmgr *m, const struct block_change *changes, size_t n)
{
	struct slot_entries *e = &m->entries;
	uint64_t id = 0;
	for (size_t i = 0; i < n; i++)
		if (slot_key_is(&changes[i].key.digest, m->fingerprint.keys.entry, &id) &&
			slot_directory_piece_told(e->directory, id, changes[i].key.segment, changes[i].tiers))
			entry_want(e, id);
	metric_set(m->stats.states, (double)slot_directory_states(e->directory));
	entry_fetch_more(m);
}

void slot_entries_open(struct slotmgr *m)
{
	m->entries.words = cgn_zeroed(1, SLOT_ENTRY_MAX_BYTES, CGN_HERE);
	m->entries.directory = slot_directory_new(on_directory_changed, m);
}

void slot_entries_close(struct slotmgr *m)
{
	if (m->entries.directory != NULL)
		slot_entries_clear(m);
	slot_directory_free(&m->entries.directory);
	free(m->entries.words);
	free(m->entries.wanted);
}
