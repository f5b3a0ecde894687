/* SPDX-License-Identifier: Apache-2.0 */
/* lookup: find the state with the most blocks of a chain in the stores of the node and its peers: ask which links
 * exist, read the longest one, read the slot entry that the link names. When a link's state is gone, the next
 * shorter link is tried, up to MAX_TRIES times. */
#include <stdlib.h>

#include "joint/kv/slotmgr/states_priv.h"

#define LOOKUP_TAG  0xa9e17009U
#define MAX_TRIES   3
#define RETRY_DELAY (5 * CGN_MSEC) /* A patient lookup retries until the request's timeout */

struct slot_lookup {
	uint32_t tag;
	struct slotmgr *mgr;
	bool patient;
	struct slot_tenant tenant;
	size_t n;      /* Blocks of the chain */
	size_t common; /* Blocks that the slot or the node's store has already */
	size_t asked;  /* Links asked for */
	unsigned tries;
	uint64_t *chain;
	uint32_t *at;         /* For each link, the block that it is of */
	unsigned char *there; /* For each link, 1 if a store has it */
	struct slot_link link;
	struct kvclient_call *call;
	struct cgn_timer retry;
	enum restore_outcome outcome;
	slot_lookup_done *done;
	void *user;
	struct cgn_grave grave;
};

static void lookup_release(struct cgn_grave *g)
{
	struct slot_lookup *l = CGN_CONTAINER(g, struct slot_lookup, grave);
	free(l->chain);
	free(l->at);
	free(l->there);
	l->tag = 0;
	free(l);
}

static void lookup_retire(struct slot_lookup *l)
{
	cgn_timer_cancel(&l->retry);
	kvclient_call_cancel(&l->call);
	cgn_loop_bury(l->mgr->loop, &l->grave, lookup_release);
}

static void lookup_finish(struct slot_lookup *l, const struct slot_entry *c)
{
	slot_lookup_done *done = l->done;
	l->done = NULL;
	done(l->user, c, l->outcome);
	lookup_retire(l);
}

static void lookup_ask(struct slot_lookup *l);
static void lookup_try_longest(struct slot_lookup *l);

static void lookup_missed(struct slot_lookup *l)
{
	if (l->patient && slotmgr_kvclient(l->mgr) != NULL)
		cgn_timer_set(&l->retry, RETRY_DELAY);
	else
		lookup_finish(l, NULL);
}

static void on_lookup_retry(struct cgn_timer *t)
{
	struct slot_lookup *l = CGN_CONTAINER(t, struct slot_lookup, retry);
	CGN_LIVE(l, LOOKUP_TAG);
	lookup_ask(l);
}

static void on_lookup_entry(void *user, const struct kvclient_answer *a)
{
	struct slot_lookup *l = user;
	struct slot_entry c;
	CGN_LIVE(l, LOOKUP_TAG);
	l->call = NULL;
	if (slot_entries_read(l->mgr, a, &c) && slot_entry_id(&c) == l->link.id && c.n >= l->link.blocks &&
		c.chain[l->link.blocks - 1] == l->chain[l->link.blocks - 1]) {
		if (!slotmgr_refuses(l->mgr, &c)) {
			lookup_finish(l, &c);
			return;
		}
		l->outcome = RESTORE_SKIPPED_REFUSED;
	} else {
		l->outcome = RESTORE_FAILED_STATE_GONE;
	}
	lookup_try_longest(l);
}

static bool lookup_pays(struct slot_lookup *l)
{
	double block = (double)l->link.prompt / l->link.chain_blocks;
	l->outcome = slotmgr_worth(l->mgr, (uint32_t)(block * (double)(l->link.blocks - l->common)),
		l->link.bytes, SLOTS_FROM_PEER);
	return l->outcome == RESTORE_NO_STATE;
}

static void on_lookup_link(void *user, const struct kvclient_answer *a)
{
	struct slot_lookup *l = user;
	char bytes[SLOT_LINK_BYTES];
	struct cgn_buf b = cgn_buf_over(bytes, sizeof bytes);
	CGN_LIVE(l, LOOKUP_TAG);
	l->call = NULL;
	slot_answer_copy(a, &b);
	bool read = a->err->code == CGN_FINE && !b.bad &&
		cgn_ok(slot_link_read(cgn_buf_view(&b), &l->link, NULL));
	struct kvclient *store = slotmgr_kvclient(l->mgr);
	if (!read || l->link.blocks <= l->common || l->link.blocks > l->n || store == NULL) {
		lookup_try_longest(l);
		return;
	}
	const struct block_key key = slotmgr_key(l->mgr->fingerprint.keys.entry, l->link.id, 0);
	if (!lookup_pays(l) ||
		!cgn_ok(kvclient_get(store, &key, KVCLIENT_WHATEVER, slot_tenant_text(&l->tenant),
			on_lookup_entry, l, &l->call, NULL)))
		lookup_finish(l, NULL);
}

static void lookup_try_longest(struct slot_lookup *l)
{
	size_t i = l->asked;
	struct kvclient *store = slotmgr_kvclient(l->mgr);
	while (i > 0 && !l->there[i - 1])
		i--;
	if (i == 0 || store == NULL || l->tries++ == MAX_TRIES) {
		lookup_missed(l);
		return;
	}
	l->there[i - 1] = 0;
	const struct block_key key = slotmgr_key(l->mgr->fingerprint.keys.link, l->chain[l->at[i - 1]], 0);
	if (!cgn_ok(kvclient_get(store, &key, KVCLIENT_WHATEVER, slot_tenant_text(&l->tenant), on_lookup_link,
		    l, &l->call, NULL)))
		lookup_finish(l, NULL);
}

static void on_lookup_answer(void *user, const struct kvclient_answer *a)
{
	struct slot_lookup *l = user;
	CGN_LIVE(l, LOOKUP_TAG);
	l->call = NULL;
	for (size_t i = 0; i < l->asked; i++)
		l->there[i] = a->err->code == CGN_FINE && i < a->n && a->infos[i].tiers != 0;
	l->tries = 0;
	/* A patient lookup waits for the whole chain: shorter states are older. */
	if (l->patient && !l->there[l->asked - 1])
		lookup_missed(l);
	else
		lookup_try_longest(l);
}

static void lookup_ask(struct slot_lookup *l)
{
	struct block_key *keys = CGN_NEW_ARRAY(struct block_key, l->asked);
	struct kvclient *store = slotmgr_kvclient(l->mgr);
	for (size_t i = 0; i < l->asked; i++)
		keys[i] = slotmgr_key(l->mgr->fingerprint.keys.link, l->chain[l->at[i]], 0);
	if (store == NULL ||
		!cgn_ok(kvclient_lookup(store, keys, l->asked, true, slot_tenant_text(&l->tenant),
			on_lookup_answer, l, &l->call, NULL)))
		lookup_finish(l, NULL);
	free(keys);
}

struct slot_lookup *slot_lookup_start(struct slotmgr *m, const uint64_t *chain, size_t n, size_t common,
	bool patient, struct cgn_str tenant, slot_lookup_done *done, void *user)
{
	size_t most = n - common < KVCLIENT_MAX_KEYS ? n - common : KVCLIENT_MAX_KEYS;
	uint64_t *copy = most > 0 ? malloc(n * sizeof *copy) : NULL;
	if (copy == NULL)
		return NULL;
	struct slot_lookup *l = CGN_NEW(struct slot_lookup);
	*l = (struct slot_lookup){.tag = LOOKUP_TAG,
		.mgr = m,
		.patient = patient,
		.tenant = slot_tenant_of(tenant),
		.n = n,
		.common = common,
		.asked = most,
		.outcome = RESTORE_NO_STATE,
		.done = done,
		.user = user};
	l->chain = memcpy(copy, chain, n * sizeof *chain);
	l->at = CGN_NEW_ARRAY(uint32_t, most);
	l->there = CGN_NEW_ARRAY(unsigned char, most);
	for (size_t i = 0; i < most; i++) /* At equal distances, the last block included */
		l->at[i] = (uint32_t)(common + (n - common) * (i + 1) / most - 1);
	cgn_timer_init(&l->retry, m->loop, on_lookup_retry);
	cgn_timer_set(&l->retry, 0);
	return l;
}

void slot_lookup_cancel(struct slot_lookup **take)
{
	struct slot_lookup *l = CGN_TAKE(take);
	if (l == NULL || l->done == NULL)
		return;
	CGN_LIVE(l, LOOKUP_TAG);
	l->done = NULL;
	lookup_retire(l);
}
