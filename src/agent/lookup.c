/* SPDX-License-Identifier: Apache-2.0 */
/* look: what the store and its peers have of a chain, by links: where they are, the longest one, the card
 * that it names. A link may lead nowhere any more; then the next shorter one is tried, a few times. */
#include <stdlib.h>

#include "agent/slotmgr.h"

#define LOOK_TAG  0xa9e17009U
#define MAX_TRIES 3
#define AGAIN     (5 * CGN_MSEC) /* patient: until somebody has the whole chain, or the request's deadline */

struct look {
	uint32_t tag;
	struct keep *keep;
	bool patient;
	size_t n, common, asked; /* of the chain; held already; keys of the lookup */
	unsigned tries;
	uint64_t *chain;
	uint32_t *at; /* block of each key */
	unsigned char *there;
	struct slot_link link;
	struct kvclient_call *call;
	struct cgn_timer again;
	enum restore_outcome how;
	void (*done)(void *user, const struct slot_entry *c, enum restore_outcome how);
	void *user;
	struct cgn_grave grave;
};

static void released(struct cgn_grave *g)
{
	struct look *l = CGN_CONTAINER(g, struct look, grave);
	free(l->chain);
	free(l->at);
	free(l->there);
	l->tag = 0;
	free(l);
}

static void retire(struct look *l)
{
	cgn_timer_cancel(&l->again);
	kvclient_call_cancel(&l->call);
	cgn_loop_bury(l->keep->e->agent->loop, &l->grave, released);
}

static void finish(struct look *l, const struct slot_entry *c)
{
	void (*done)(void *, const struct slot_entry *, enum restore_outcome) = l->done;
	l->done = NULL;
	done(l->user, c, l->how);
	retire(l);
}

static void look(struct look *l);
static void try_longest(struct look *l);

static void nothing(struct look *l)
{
	if (l->patient && slotmgr_kvclient(l->keep) != NULL)
		cgn_timer_set(&l->again, AGAIN);
	else
		finish(l, NULL);
}

static void on_again(struct cgn_timer *t)
{
	struct look *l = CGN_CONTAINER(t, struct look, again);
	CGN_LIVE(l, LOOK_TAG);
	look(l);
}

static void copy_out(const struct kvclient_lease *lease, struct cgn_buf *b)
{
	size_t n = 0;
	const struct iovec *iov = kvclient_lease_iov(lease, &n);
	for (size_t i = 0; i < n; i++)
		cgn_buf_add(b, iov[i].iov_base, iov[i].iov_len);
}

static void on_card(void *user, const struct kvclient_answer *a)
{
	struct look *l = user;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.limit = SLOT_ENTRY_MAX_BYTES};
	struct kvclient_lease *lease = a->lease;
	struct slot_entry c;
	CGN_LIVE(l, LOOK_TAG);
	l->call = NULL;
	if (lease != NULL)
		copy_out(lease, &b);
	kvclient_lease_release(&lease);
	if (a->err->code == CGN_FINE && !b.bad &&
		cgn_ok(slot_entry_read(cgn_buf_view(&b), l->keep->words, &c, NULL)) &&
		slot_entry_id(&c) == l->link.id && c.n >= l->link.blocks &&
		c.chain[l->link.blocks - 1] == l->chain[l->link.blocks - 1]) {
		if (!slotmgr_refuses(l->keep, &c)) {
			finish(l, &c);
			return;
		}
		l->how = RESTORE_SKIPPED_REFUSED;
	} else {
		l->how = RESTORE_FAILED_STATE_GONE;
	}
	try_longest(l);
}

static bool pays(struct look *l)
{
	double block = (double)l->link.prompt / l->link.chain_blocks;
	l->how = slotmgr_worth(l->keep, (uint32_t)(block * (double)(l->link.blocks - l->common)),
		l->link.bytes, SLOTS_FROM_PEER);
	return l->how == RESTORE_NO_STATE;
}

static void on_link(void *user, const struct kvclient_answer *a)
{
	struct look *l = user;
	char bytes[SLOT_LINK_BYTES];
	struct cgn_buf b = cgn_buf_over(bytes, sizeof bytes);
	struct kvclient_lease *lease = a->lease;
	CGN_LIVE(l, LOOK_TAG);
	l->call = NULL;
	if (lease != NULL)
		copy_out(lease, &b);
	kvclient_lease_release(&lease);
	bool read = a->err->code == CGN_FINE && !b.bad &&
		cgn_ok(slot_link_read(cgn_buf_view(&b), &l->link, NULL));
	struct kvclient *store = slotmgr_kvclient(l->keep);
	if (!read || l->link.blocks <= l->common || l->link.blocks > l->n || store == NULL) {
		try_longest(l);
		return;
	}
	const struct block_key key = slotmgr_key(l->keep->keys.slot_entry, l->link.id, 0);
	if (!pays(l) || !cgn_ok(kvclient_get(store, &key, KVCLIENT_WHATEVER, on_card, l, &l->call, NULL)))
		finish(l, NULL);
}

static void try_longest(struct look *l)
{
	size_t i = l->asked;
	struct kvclient *store = slotmgr_kvclient(l->keep);
	while (i > 0 && !l->there[i - 1])
		i--;
	if (i == 0 || store == NULL || l->tries++ == MAX_TRIES) {
		nothing(l);
		return;
	}
	l->there[i - 1] = 0;
	const struct block_key key = slotmgr_key(l->keep->keys.link, l->chain[l->at[i - 1]], 0);
	if (!cgn_ok(kvclient_get(store, &key, KVCLIENT_WHATEVER, on_link, l, &l->call, NULL)))
		finish(l, NULL);
}

static void on_lookup(void *user, const struct kvclient_answer *a)
{
	struct look *l = user;
	CGN_LIVE(l, LOOK_TAG);
	l->call = NULL;
	for (size_t i = 0; i < l->asked; i++)
		l->there[i] = a->err->code == CGN_FINE && i < a->n && a->infos[i].tiers != 0;
	l->tries = 0;
	/* Who waits for one waits for the longest: shorter ones are from before. */
	if (l->patient && !l->there[l->asked - 1])
		nothing(l);
	else
		try_longest(l);
}

static void look(struct look *l)
{
	struct block_key *keys = malloc(l->asked * sizeof *keys);
	struct kvclient *store = slotmgr_kvclient(l->keep);
	for (size_t i = 0; keys != NULL && i < l->asked; i++)
		keys[i] = slotmgr_key(l->keep->keys.link, l->chain[l->at[i]], 0);
	if (keys == NULL || store == NULL ||
		!cgn_ok(kvclient_lookup(store, keys, l->asked, true, on_lookup, l, &l->call, NULL)))
		finish(l, NULL);
	free(keys);
}

struct look *lookup_start(struct keep *k, const uint64_t *chain, size_t n, size_t common, bool patient,
	void (*done)(void *user, const struct slot_entry *c, enum restore_outcome how), void *user)
{
	struct look *l = calloc(1, sizeof *l);
	size_t most = n - common < KVCLIENT_MAX_KEYS ? n - common : KVCLIENT_MAX_KEYS;
	if (l == NULL || most == 0) {
		free(l);
		return NULL;
	}
	*l = (struct look){.tag = LOOK_TAG,
		.keep = k,
		.patient = patient,
		.n = n,
		.common = common,
		.asked = most,
		.how = RESTORE_NO_STATE,
		.done = done,
		.user = user};
	l->chain = malloc(n * sizeof *l->chain);
	l->at = malloc(most * sizeof *l->at);
	l->there = calloc(most, 1);
	if (l->chain == NULL || l->at == NULL || l->there == NULL) {
		released(&l->grave);
		return NULL;
	}
	memcpy(l->chain, chain, n * sizeof *chain);
	for (size_t i = 0; i < most; i++) /* evenly, and the last */
		l->at[i] = (uint32_t)(common + (n - common) * (i + 1) / most - 1);
	cgn_timer_init(&l->again, k->e->agent->loop, on_again);
	cgn_timer_set(&l->again, 0);
	return l;
}

void lookup_cancel(struct look **take)
{
	struct look *l = *take;
	*take = NULL;
	if (l == NULL || l->done == NULL)
		return;
	CGN_LIVE(l, LOOK_TAG);
	l->done = NULL;
	retire(l);
}
