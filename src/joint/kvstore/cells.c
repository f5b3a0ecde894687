/* SPDX-License-Identifier: Apache-2.0 */
/* Cells: what entries of the index are made of, all of one size, in chunks that never move nor go. */
#include "kvstore_priv.h"

#include <sys/mman.h>

/* Aligned to its size: mapped with as much to spare, which goes back. */
static struct kv_chunk *chunk_new(void)
{
	char *p = mmap(NULL, 2 * KV_CHUNK_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	size_t before = (KV_CHUNK_BYTES - ((uintptr_t)p & (KV_CHUNK_BYTES - 1))) & (KV_CHUNK_BYTES - 1);
	if (before > 0)
		(void)munmap(p, before);
	(void)munmap(p + before + KV_CHUNK_BYTES, KV_CHUNK_BYTES - before);
	return (struct kv_chunk *)(void *)(p + before);
}

static bool chunk_at(struct kvstore *s, uint32_t index)
{
	if (index >= KV_CHUNKS)
		return false;
	if (s->chunk[index] != NULL)
		return true;
	struct kv_chunk *c = chunk_new();
	if (c == NULL)
		return false;
	*c = (struct kv_chunk){.tag = KV_CHUNK_TAG, .index = index, .store = s};
	s->chunk[index] = c;
	return true;
}

union kv_cell *kv_cell_take(struct kvstore *s)
{
	uint32_t id = s->free_cell;
	if (id == KV_NONE && !chunk_at(s, s->top_cell / (uint32_t)KV_CHUNK_CELLS))
		return NULL;
	if (id == KV_NONE)
		id = s->top_cell++;
	union kv_cell *cell = kv_cell_at(s, id);
	if (id == s->free_cell)
		s->free_cell = cell->block.next;
	memset(cell, 0, sizeof *cell);
	s->n_cells++;
	return cell;
}

struct kv_extra *kv_extra_init(union kv_cell *cell, struct kv_block *b)
{
	struct kv_extra *x = &cell->extra;
	cgn_list_init(&x->pin);
	cgn_list_init(&x->ending);
	x->block = b;
	return x;
}

void kv_cell_give(struct kvstore *s, void *take)
{
	union kv_cell *cell = take;
	cell->block.next = s->free_cell;
	s->free_cell = kv_cell_id(cell);
	s->n_cells--;
}

void kv_cells_free(struct kvstore *s)
{
	for (size_t i = 0; i < KV_CHUNKS && s->chunk[i] != NULL; i++) {
		s->chunk[i]->tag = 0;
		(void)munmap(s->chunk[i], KV_CHUNK_BYTES);
	}
}
