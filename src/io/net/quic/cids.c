/* SPDX-License-Identifier: Apache-2.0 */
/* cids: the table from connection ids to connections. A connection has a handful of ids: those it issued, and
 * the one its peer began with. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "quic_priv.h"

void quic_cids_init(struct quic_cids *t, size_t conns)
{
	*t = (struct quic_cids){.n_buckets = 64};
	while (t->n_buckets < conns * 4)
		t->n_buckets *= 2;
	cgn_random(&t->seed, sizeof t->seed);
	t->buckets = CGN_NEW_ARRAY(struct quic_cid *, t->n_buckets);
}

void quic_cids_fini(struct quic_cids *t)
{
	CGN_MUST(t->n == 0);
	free(t->buckets);
	*t = (struct quic_cids){0};
}

static struct quic_cid **cid_bucket(const struct quic_cids *t, const uint8_t *cid, size_t n)
{
	struct quic_cid **at = &t->buckets[XXH3_64bits_withSeed(cid, n, t->seed) & (t->n_buckets - 1)];
	while (*at != NULL && ((*at)->cid.datalen != n || memcmp((*at)->cid.data, cid, n) != 0))
		at = &(*at)->next;
	return at;
}

bool quic_cids_put(struct quic_cids *t, const ngtcp2_cid *cid, struct quic_conn *c)
{
	struct quic_cid **at = cid_bucket(t, cid->data, cid->datalen);
	if (*at != NULL)
		return false;
	struct quic_cid *e = CGN_NEW(struct quic_cid);
	e->cid = *cid;
	e->conn = c;
	cgn_list_push(&c->cids, &e->of_conn);
	*at = e;
	t->n++;
	return true;
}

static void remove_at(struct quic_cids *t, struct quic_cid **at)
{
	struct quic_cid *e = *at;
	if (e == NULL)
		return;
	*at = e->next;
	cgn_list_drop(&e->of_conn);
	free(e);
	t->n--;
}

void quic_cids_drop(struct quic_cids *t, const ngtcp2_cid *cid)
{
	remove_at(t, cid_bucket(t, cid->data, cid->datalen));
}

void quic_cids_drop_all(struct quic_cids *t, struct quic_conn *c)
{
	for (struct cgn_link *l; (l = cgn_list_first(&c->cids)) != NULL;) {
		const struct quic_cid *e = CGN_CONTAINER(l, struct quic_cid, of_conn);
		remove_at(t, cid_bucket(t, e->cid.data, e->cid.datalen));
	}
}

struct quic_conn *quic_cids_find(const struct quic_cids *t, const uint8_t *cid, size_t n)
{
	struct quic_cid *const *at = cid_bucket(t, cid, n);
	return *at != NULL ? (*at)->conn : NULL;
}
