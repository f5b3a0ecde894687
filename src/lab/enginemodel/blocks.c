/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks without users are in one list, the next victim first; unused blocks without a hash are at its
 * front. */
#include "lab/enginemodel/blocks.h"

#include <stdlib.h>

#include "base/table/table.h"

#define BLOCKS_TAG 0x51b10c55U
#define NONE       ENGINEMODEL_BLOCK_NONE

struct block {
	uint64_t hash;
	uint32_t users;
	uint32_t next, prev; /* Neighbours in the list of idle blocks, a ring closed at index n. */
	bool known;
};

struct enginemodel_blocks {
	uint32_t tag, n, used;
	struct table table; /* Indices of the known blocks. */
	uint64_t *notes;
	struct enginemodel_blocks_cfg cfg;
	struct block *block; /* Owned, n + 1: the last one is the head of the idle list. */
};

static void idle_link(struct enginemodel_blocks *b, uint32_t i, uint32_t after)
{
	uint32_t next = b->block[after].next;
	b->block[i].prev = after;
	b->block[i].next = next;
	b->block[after].next = i;
	b->block[next].prev = i;
}

static void idle_unlink(struct enginemodel_blocks *b, uint32_t i)
{
	b->block[b->block[i].prev].next = b->block[i].next;
	b->block[b->block[i].next].prev = b->block[i].prev;
	b->block[i].next = b->block[i].prev = NONE;
}

CGN_RC enginemodel_blocks_new(const struct enginemodel_blocks_cfg *cfg, struct enginemodel_blocks **out)
{
	uint32_t n = cfg->n;
	CGN_MUST(n > 0 && n <= 1U << 26 && cfg->note_bytes % sizeof(uint64_t) == 0);
	struct enginemodel_blocks *b = CGN_NEW(struct enginemodel_blocks);
	b->tag = BLOCKS_TAG;
	b->n = n;
	b->cfg = *cfg;
	b->block = calloc(n + 1U, sizeof *b->block);
	b->notes = cfg->note_bytes > 0 ? calloc(n, cfg->note_bytes) : NULL;
	if (b->block == NULL || !table_reserve(&b->table, n) || (cfg->note_bytes > 0 && b->notes == NULL)) {
		enginemodel_blocks_free(&b);
		return CGN_RC_OF(CGN_NO_MEMORY);
	}
	b->block[n].next = b->block[n].prev = n;
	for (uint32_t i = n; i-- > 0;)
		idle_link(b, i, n);
	*out = b;
	return CGN_OK;
}

void enginemodel_blocks_free(struct enginemodel_blocks **take)
{
	struct enginemodel_blocks *b = CGN_TAKE_LIVE(take, BLOCKS_TAG);
	if (b == NULL)
		return;
	b->tag = 0;
	free(b->block);
	table_fini(&b->table);
	free(b->notes);
	free(b);
}

static uint32_t look_up(const struct enginemodel_blocks *b, uint64_t hash)
{
	return table_find(&b->table, hash, &b->block->hash, sizeof *b->block);
}

static void block_uncache(struct enginemodel_blocks *b, uint32_t i)
{
	table_drop(&b->table, b->block[i].hash, i);
	b->block[i].known = false;
}

static void add_user(struct enginemodel_blocks *b, uint32_t i)
{
	if (b->block[i].users++ > 0)
		return;
	idle_unlink(b, i);
	b->used++;
}

uint32_t enginemodel_blocks_find(struct enginemodel_blocks *b, uint64_t hash)
{
	CGN_LIVE(b, BLOCKS_TAG);
	uint32_t i = look_up(b, hash);
	if (i != NONE)
		add_user(b, i);
	return i;
}

bool enginemodel_blocks_has(const struct enginemodel_blocks *b, uint64_t hash)
{
	CGN_LIVE(b, BLOCKS_TAG);
	return look_up(b, hash) != NONE;
}

bool enginemodel_blocks_idle(const struct enginemodel_blocks *b, uint64_t hash)
{
	CGN_LIVE(b, BLOCKS_TAG);
	uint32_t i = look_up(b, hash);
	return i != NONE && b->block[i].users == 0;
}

void *enginemodel_blocks_note(struct enginemodel_blocks *b, uint32_t block)
{
	CGN_LIVE(b, BLOCKS_TAG);
	CGN_MUST(block < b->n);
	return b->notes == NULL ? NULL : b->notes + (size_t)block * (b->cfg.note_bytes / sizeof *b->notes);
}

uint32_t enginemodel_blocks_take(struct enginemodel_blocks *b)
{
	CGN_LIVE(b, BLOCKS_TAG);
	uint32_t i = b->block[b->n].next;
	if (i == b->n)
		return NONE;
	bool known = b->block[i].known;
	if (known)
		block_uncache(b, i);
	add_user(b, i);
	if (known && b->cfg.evict != NULL)
		b->cfg.evict(b->cfg.arg, b->block[i].hash, enginemodel_blocks_note(b, i));
	return i;
}

bool enginemodel_blocks_publish(struct enginemodel_blocks *b, uint32_t block, uint64_t hash)
{
	CGN_LIVE(b, BLOCKS_TAG);
	CGN_MUST(block < b->n && b->block[block].users > 0);
	if (b->block[block].known || look_up(b, hash) != NONE)
		return false;
	struct block *it = &b->block[block];
	it->hash = hash;
	it->known = true;
	table_put(&b->table, hash, block);
	return true;
}

void enginemodel_blocks_release(struct enginemodel_blocks *b, uint32_t block)
{
	CGN_LIVE(b, BLOCKS_TAG);
	CGN_MUST(block < b->n && b->block[block].users > 0);
	if (--b->block[block].users > 0)
		return;
	b->used--;
	idle_link(b, block, b->block[block].known ? b->block[b->n].prev : b->n);
}

void enginemodel_blocks_forget_all(struct enginemodel_blocks *b)
{
	CGN_LIVE(b, BLOCKS_TAG);
	table_clear(&b->table);
	for (uint32_t i = 0; i < b->n; i++)
		b->block[i].known = false;
}

void enginemodel_blocks_each(struct enginemodel_blocks *b, void (*fn)(void *arg, uint64_t hash, void *note),
	void *arg)
{
	CGN_LIVE(b, BLOCKS_TAG);
	for (uint32_t i = 0; i < b->n; i++) {
		if (b->block[i].known)
			fn(arg, b->block[i].hash, enginemodel_blocks_note(b, i));
	}
}

uint32_t enginemodel_blocks_total(const struct enginemodel_blocks *b)
{
	return b->n;
}

uint32_t enginemodel_blocks_used(const struct enginemodel_blocks *b)
{
	return b->used;
}

uint32_t enginemodel_blocks_known(const struct enginemodel_blocks *b)
{
	return b->table.n;
}

bool enginemodel_blocks_sound(const struct enginemodel_blocks *b)
{
	CGN_LIVE(b, BLOCKS_TAG);
	uint32_t idle = 0, used = 0, known = 0;
	for (uint32_t i = b->block[b->n].next; i != b->n; i = b->block[i].next) {
		if (idle++ > b->n || b->block[i].users != 0 || b->block[b->block[i].next].prev != i)
			return false;
	}
	for (uint32_t i = 0; i < b->n; i++) {
		used += b->block[i].users > 0;
		known += b->block[i].known;
		if (b->block[i].known && look_up(b, b->block[i].hash) != i)
			return false;
	}
	return idle + used == b->n && used == b->used && known == b->table.n;
}
