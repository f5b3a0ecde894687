/* SPDX-License-Identifier: Apache-2.0 */
/* Room: memory for a block, and who leaves for it. What is held (read, written, pinned) stays and counts. */
#include "kvstore_priv.h"

#define VICTIMS 16
#define ROUNDS  16 /* as often it is looked again when blocks came or went meanwhile */

/* ---- taking ---- */
static void fill_in(struct kvstore *s, struct kvstore_block *b, struct kvstore_extra *x, uint64_t size,
	const struct pages_place *place)
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

/* Under ground. NULL: why is in *code. */
static struct kvstore_block *take(struct kvstore *s, uint64_t size, bool named, bool *fresh,
	enum cgn_code *code)
{
	struct pages_place place;
	*code = CGN_OVERLOADED;
	if (!pages_take(s->pages, size, &place, fresh))
		return NULL;
	bool more = named || place.runs != NULL;
	union kvstore_cell *b = kvstore_cell_take(s), *x = b != NULL && more ? kvstore_cell_take(s) : NULL;
	if (b != NULL && (x != NULL || !more)) {
		fill_in(s, &b->block, more ? kvstore_extra_init(x, &b->block) : NULL, size, &place);
		return &b->block;
	}
	if (b != NULL)
		kvstore_cell_give(s, b);
	pages_give(s->pages, size, &place);
	*code = CGN_NO_MEMORY;
	return NULL;
}

static CGN_RC try_take(struct kvstore *s, uint64_t size, bool named, struct kvstore_block **out)
{
	bool fresh = false;
	enum cgn_code code = CGN_FINE;
	(void)pthread_mutex_lock(&s->ground);
	struct kvstore_block *b = take(s, size, named, &fresh, &code);
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
static bool may_go(void *user, struct evict_node *n)
{
	(void)user;
	return atomic_load_explicit(&CGN_CONTAINER(n, struct kvstore_block, use)->refs,
		       memory_order_relaxed) == 1;
}

/* One that was chosen, with our reference: it leaves, unless somebody took to it meanwhile. */
static void leave(struct kvstore *s, struct kvstore_block *b)
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

/* Some leave, as many as take up |bytes| or a few. False: there was none who could. */
static bool evict_some(struct kvstore *s, uint64_t bytes)
{
	struct kvstore_block *chosen[VICTIMS];
	size_t n = 0;
	(void)pthread_mutex_lock(&s->evict_lock);
	for (uint64_t freed = 0; n < VICTIMS && freed < bytes; n++) {
		struct evict_node *node = evict_victim(&s->evict, may_go, NULL);
		if (node == NULL)
			break;
		chosen[n] = CGN_CONTAINER(node, struct kvstore_block, use);
		kvstore_block_ref(chosen[n]);
		freed += node->bytes;
	}
	(void)pthread_mutex_unlock(&s->evict_lock);
	for (size_t i = 0; i < n; i++)
		leave(s, chosen[i]);
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
		cgn_rc rc = try_take(s, size, named, out);
		if (cgn_ok(rc))
			return rc;
		if (rc.code != CGN_OVERLOADED)
			return CGN_FAIL_AS(err, rc.code, "no memory for a value of %llu bytes",
				(unsigned long long)size);
		if (evict_some(s, pages_footprint(size)) || kvstore_unpin_due(s, SIZE_MAX))
			continue;
		if (turn == atomic_load(&s->turn))
			break;
		round++;
	}
	return CGN_FAIL(err, OVERLOADED,
		"no room for %llu bytes: all of the tier is being read, written or pinned",
		(unsigned long long)size);
}
