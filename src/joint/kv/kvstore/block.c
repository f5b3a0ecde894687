/* SPDX-License-Identifier: Apache-2.0 */
/* block: the fields of a block for the holder of a reference, and how a block is freed with its last one. */
#include "kvstore_priv.h"

#include <stdlib.h>

#include "base/sum/sum.h"

struct pages_place kvstore_block_place(const struct kvstore_block *b)
{
	const struct kvstore_extra *x = kvstore_block_extra(b);
	return (struct pages_place){.page = b->page,
		.tail_page = b->tail_page,
		.slot = b->slot,
		.runs = x != NULL ? x->runs : NULL};
}

bool kvstore_block_expired(const struct kvstore *s, const struct kvstore_block *b)
{
	uint64_t at = kvstore_ms_get(b->expires);
	return at != 0 && at <= s->wall_ms();
}

void kvstore_block_describe(const struct kvstore *s, const struct kvstore_block *b, struct block_info *out)
{
	*out = (struct block_info){.size = b->size,
		.checksum = b->checksum,
		.tokens = b->tokens,
		.created_unix_ms = kvstore_ms_get(b->created),
		.expires_unix_ms = kvstore_ms_get(b->expires),
		.tiers = b->tiers,
		.leave = kvstore_label_leave(s, b->label),
		.pinned = b->pinned && kvstore_block_pinned_extra(b)->pinned_until > s->wall_ms()};
}

static uint64_t block_sum_pieces(const struct kvstore *s, const struct kvstore_block *b)
{
	struct pages_place place = kvstore_block_place(b);
	struct pages_walk w = {0};
	uint64_t off = 0, n = 0;
	struct sum64 sum;
	sum64_begin(&sum);
	while (pages_next(&place, b->size, &w, &off, &n))
		sum64_add(&sum, pages_at(s->pages, off), n);
	return sum64_end(&sum);
}

uint64_t kvstore_block_sum(const struct kvstore_block *b)
{
	const struct kvstore *s = kvstore_block_store(b);
	struct pages_place place = kvstore_block_place(b);
	struct pages_walk w = {0};
	uint64_t off = 0, n = 0;
	if (!pages_next(&place, b->size, &w, &off, &n))
		return sum64(NULL, 0);
	return n == b->size ? sum64(pages_at(s->pages, off), n) : block_sum_pieces(s, b);
}

/* ---- references ---- */
void kvstore_block_ref(struct kvstore_block *b)
{
	KVSTORE_BLOCK_LIVE(b);
	atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
}

static void block_release(struct kvstore_block *b)
{
	struct kvstore *s = kvstore_block_store(b);
	struct kvstore_extra *x = kvstore_block_extra(b);
	struct pages_place place = kvstore_block_place(b);
	uint16_t label = b->label;
	if (place.runs != NULL)
		atomic_fetch_sub(&s->aside_bytes,
			sizeof *place.runs + place.runs->n * sizeof place.runs->run[0]);
	if (x != NULL) {
		atomic_fetch_sub(&s->aside_bytes, x->n_name);
		free(x->name);
	}
	(void)pthread_mutex_lock(&s->ground);
	if (kvstore_block_in_ram(b))
		pages_give(s->pages, b->size, &place);
	if (x != NULL)
		kvstore_cell_give(s, x);
	kvstore_cell_give(s, b);
	(void)pthread_mutex_unlock(&s->ground);
	kvstore_label_give(s, label);
	/* A put that found no room looks again (kvstore_room_make). */
	atomic_fetch_add(&s->turn, 1);
}

void kvstore_block_unref(struct kvstore_block **take)
{
	struct kvstore_block *b = CGN_TAKE(take);
	if (b == NULL)
		return;
	KVSTORE_BLOCK_LIVE(b);
	if (atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) == 1)
		block_release(b);
}

/* ---- accessors ---- */
uint64_t kvstore_block_size(const struct kvstore_block *b)
{
	KVSTORE_BLOCK_LIVE(b);
	return b->size;
}

uint64_t kvstore_block_checksum(const struct kvstore_block *b)
{
	KVSTORE_BLOCK_LIVE(b);
	return b->checksum;
}

struct block_info kvstore_block_info(const struct kvstore_block *b)
{
	KVSTORE_BLOCK_LIVE(b);
	/* Another thread may change tiers, expiry and pin; size, checksum and names stay as they are. */
	struct kvstore *s = kvstore_block_store(b);
	struct kvstore_shard *sh = kvstore_shard_of(s, kvstore_hash(s, &b->key));
	struct block_info info;
	(void)pthread_mutex_lock(&sh->lock);
	kvstore_block_describe(s, b, &info);
	(void)pthread_mutex_unlock(&sh->lock);
	return info;
}

struct cgn_str kvstore_block_model(const struct kvstore_block *b)
{
	KVSTORE_BLOCK_LIVE(b);
	return kvstore_label_model(kvstore_block_store(b), b->label);
}

struct cgn_str kvstore_block_tenant(const struct kvstore_block *b)
{
	KVSTORE_BLOCK_LIVE(b);
	return kvstore_label_tenant(kvstore_block_store(b), b->label);
}

struct cgn_str kvstore_block_name(const struct kvstore_block *b)
{
	KVSTORE_BLOCK_LIVE(b);
	const struct kvstore_extra *x = kvstore_block_extra(b);
	return x != NULL ? (struct cgn_str){x->name, x->n_name} : (struct cgn_str){0};
}

uint64_t kvstore_block_iov(const struct kvstore_block *b, uint64_t off, uint64_t n, struct iovec *iov,
	size_t cap, size_t *n_iov)
{
	KVSTORE_BLOCK_LIVE(b);
	const struct kvstore *s = kvstore_block_store(b);
	struct pages_place place = kvstore_block_place(b);
	struct pages_walk w = {.at = off};
	uint64_t at = 0, length = 0, covered = 0;
	for (*n_iov = 0; *n_iov < cap && covered < n && pages_next(&place, b->size, &w, &at, &length);
		covered += length) {
		length = length < n - covered ? length : n - covered;
		iov[(*n_iov)++] = (struct iovec){pages_at(s->pages, at), length};
	}
	return covered;
}

size_t kvstore_block_extents(const struct kvstore_block *b, struct kvstore_extent *out, size_t cap)
{
	KVSTORE_BLOCK_LIVE(b);
	struct pages_place place = kvstore_block_place(b);
	struct pages_walk w = {0};
	struct kvstore_extent x = {0};
	size_t n = 0;
	for (; pages_next(&place, b->size, &w, &x.offset, &x.length); n++)
		if (n < cap)
			out[n] = x;
	return n;
}

struct kvstore_extra *kvstore_extra_ensure(struct kvstore *s, struct kvstore_block *b)
{
	struct kvstore_extra *x = kvstore_block_extra(b);
	if (x != NULL)
		return x;
	(void)pthread_mutex_lock(&s->ground);
	union kvstore_cell *cell = kvstore_cell_take(s);
	(void)pthread_mutex_unlock(&s->ground);
	if (cell == NULL)
		return NULL;
	(void)kvstore_extra_init(cell, b);
	atomic_store_explicit(&b->extra, kvstore_cell_id(cell), memory_order_release);
	return &cell->extra;
}

void kvstore_extra_drop(struct kvstore *s, struct kvstore_block *b)
{
	struct kvstore_extra *x = kvstore_block_extra(b);
	if (x == NULL || x->name != NULL || x->runs != NULL || b->pinned)
		return;
	atomic_store_explicit(&b->extra, KVSTORE_NONE, memory_order_release);
	kvstore_cell_give(s, x);
}

struct kvstore_extra *kvstore_extra_init(union kvstore_cell *cell, struct kvstore_block *b)
{
	struct kvstore_extra *x = &cell->extra;
	cgn_list_init(&x->pin);
	cgn_list_init(&x->ending);
	x->block = b;
	return x;
}
