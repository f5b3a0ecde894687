/* SPDX-License-Identifier: Apache-2.0 */
/* Room: memory for a new block, and the eviction of others. Blocks that are read, written or pinned stay. */
#include "kvstore_priv.h"

#define VICTIMS 16
#define SPARED  128 /* blocks that are passed over for one eviction because they wait to be written to SSD */
#define ROUNDS  16  /* rounds without success while blocks come or go */

/* ---- taking ---- */
static void room_fill_block(struct kvstore *s, struct kvstore_block *b, struct kvstore_extra *x,
	uint64_t size, const struct pages_place *place)
{
	b->size = (uint32_t)size;
	b->page = place->page;
	b->tail_page = place->tail_page;
	b->slot = place->slot;
	atomic_init(&b->refs, 1);
	if (x == NULL)
		return;
	x->runs = place->runs;
	atomic_init(&b->extra, kvstore_cell_id(x));
	if (x->runs != NULL)
		atomic_fetch_add(&s->aside_bytes, sizeof *x->runs + x->runs->n * sizeof x->runs->run[0]);
}

/* Take pages and cells for a block. Under |ground|. NULL: *code says why. */
static struct kvstore_block *room_take(struct kvstore *s, uint64_t size, bool named, bool *fresh,
	enum cgn_code *code)
{
	struct pages_place place;
	*code = CGN_OVERLOADED;
	if (!pages_take(s->pages, size, &place, fresh))
		return NULL;
	bool more = named || place.runs != NULL;
	union kvstore_cell *b = kvstore_cell_take(s), *x = b != NULL && more ? kvstore_cell_take(s) : NULL;
	if (b != NULL && (x != NULL || !more)) {
		room_fill_block(s, &b->block, more ? kvstore_extra_init(x, &b->block) : NULL, size, &place);
		return &b->block;
	}
	if (b != NULL)
		kvstore_cell_give(s, b);
	pages_give(s->pages, size, &place);
	*code = CGN_NO_MEMORY;
	return NULL;
}

static CGN_RC room_try_take(struct kvstore *s, uint64_t size, bool named, struct kvstore_block **out)
{
	bool fresh = false;
	enum cgn_code code = CGN_FINE;
	(void)pthread_mutex_lock(&s->ground);
	struct kvstore_block *b = room_take(s, size, named, &fresh, &code);
	(void)pthread_mutex_unlock(&s->ground);
	if (b == NULL)
		return CGN_RC_OF(code);
	struct pages_place place = kvstore_block_place(b);
	if (fresh && !pages_ready(s->pages, size, &place)) {
		kvstore_block_unref(&b);
		return CGN_RC_OF(CGN_NO_MEMORY);
	}
	*out = b;
	return CGN_OK;
}

/* ---- leaving ---- */
/* |user|: how many blocks that wait to be written are spared yet. */
static bool room_may_evict(void *user, struct evict_node *n)
{
	unsigned *spare = user;
	if (*spare > 0 && (atomic_load_explicit(&n->mark, memory_order_relaxed) & KVSTORE_SPARED) != 0) {
		--*spare;
		return false;
	}
	return atomic_load_explicit(&CGN_CONTAINER(n, struct kvstore_block, use)->refs,
		       memory_order_relaxed) == 1;
}

/* Evict a chosen block, on which this thread has a reference, unless it was pinned or taken meanwhile. */
static void room_evict(struct kvstore *s, struct kvstore_block *b)
{
	uint64_t hash = kvstore_hash(s, &b->key);
	struct kvstore_shard *sh = kvstore_shard_of(s, hash);
	struct kvstore_block *gone = NULL;
	(void)pthread_mutex_lock(&sh->lock);
	if (b->linked && !b->pinned && atomic_load(&b->refs) == 2) {
		atomic_fetch_add(&s->evictions, 1);
		if (b->place != 0) {
			kvstore_demote(s, sh, b);
		} else {
			kvstore_unlink(s, sh, b, hash);
			gone = b;
		}
	} else if (b->linked && !b->pinned) {
		(void)pthread_mutex_lock(&s->evict_lock);
		if (!evict_has(&b->use))
			evict_add(&s->evict, &b->use, (uint32_t)pages_footprint(b->size));
		(void)pthread_mutex_unlock(&s->evict_lock);
	}
	(void)pthread_mutex_unlock(&sh->lock);
	kvstore_block_unref(&gone);
	kvstore_block_unref(&b);
}

/* Evict blocks of |bytes| in all, or VICTIMS of them. Returns false when no block could be evicted. */
static bool room_evict_some(struct kvstore *s, uint64_t bytes)
{
	struct kvstore_block *chosen[VICTIMS];
	size_t n = 0;
	unsigned spare = SPARED;
	(void)pthread_mutex_lock(&s->evict_lock);
	for (uint64_t freed = 0; n < VICTIMS && freed < bytes; n++) {
		struct evict_node *node = evict_victim(&s->evict, room_may_evict, &spare);
		if (node == NULL && spare < SPARED) { /* nothing else can go */
			spare = 0;
			node = evict_victim(&s->evict, room_may_evict, &spare);
		}
		if (node == NULL)
			break;
		chosen[n] = CGN_CONTAINER(node, struct kvstore_block, use);
		kvstore_block_ref(chosen[n]);
		freed += node->bytes;
	}
	(void)pthread_mutex_unlock(&s->evict_lock);
	for (size_t i = 0; i < n; i++)
		room_evict(s, chosen[i]);
	return n > 0;
}

bool kvstore_room_fits(const struct kvstore *s, uint64_t size)
{
	return size <= BLOCK_MAX_BYTES && pages_footprint(size) <= pages_bytes(s->pages) / 2;
}

CGN_RC kvstore_room_make(struct kvstore *s, uint64_t size, bool named, struct kvstore_block **out,
	struct cgn_err *err)
{
	for (unsigned round = 0; round < ROUNDS;) {
		uint64_t turn = atomic_load(&s->turn);
		cgn_rc rc = room_try_take(s, size, named, out);
		if (cgn_ok(rc))
			return rc;
		if (rc.code != CGN_OVERLOADED)
			return CGN_FAIL_AS(err, rc.code, "no memory for a value of %llu bytes",
				(unsigned long long)size);
		if (room_evict_some(s, pages_footprint(size)) || kvstore_unpin_due(s, SIZE_MAX))
			continue;
		if (turn == atomic_load(&s->turn))
			break;
		round++;
	}
	return CGN_FAIL(err, OVERLOADED,
		"no room for %llu bytes: all of the tier is being read, written or pinned",
		(unsigned long long)size);
}
