/* SPDX-License-Identifier: Apache-2.0 */
/* Cells: fixed-size memory for entries of the index, in chunks that never move and are freed with the
 * store. */
#include "kvstore_priv.h"

#include <sys/mman.h>

/* Map a chunk that is aligned to its size: map twice the size, then unmap the excess. */
static struct kvstore_chunk *chunk_new(void)
{
	char *p = mmap(NULL, 2 * KVSTORE_CHUNK_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	size_t before = (KVSTORE_CHUNK_BYTES - ((uintptr_t)p & (KVSTORE_CHUNK_BYTES - 1))) &
		(KVSTORE_CHUNK_BYTES - 1);
	if (before > 0)
		(void)munmap(p, before);
	(void)munmap(p + before + KVSTORE_CHUNK_BYTES, KVSTORE_CHUNK_BYTES - before);
	return (struct kvstore_chunk *)(void *)(p + before);
}

static bool chunk_ensure(struct kvstore *s, uint32_t index)
{
	if (index >= KVSTORE_CHUNKS)
		return false;
	if (s->chunk[index] != NULL)
		return true;
	struct kvstore_chunk *c = chunk_new();
	if (c == NULL)
		return false;
	*c = (struct kvstore_chunk){.tag = KVSTORE_CHUNK_TAG, .index = index, .store = s};
	s->chunk[index] = c;
	return true;
}

union kvstore_cell *kvstore_cell_take(struct kvstore *s)
{
	uint32_t id = s->free_cell;
	if (id == KVSTORE_NONE && !chunk_ensure(s, s->top_cell / (uint32_t)KVSTORE_CHUNK_CELLS))
		return NULL;
	if (id == KVSTORE_NONE)
		id = s->top_cell++;
	union kvstore_cell *cell = kvstore_cell_at(s, id);
	if (id == s->free_cell)
		s->free_cell = cell->block.next;
	memset(cell, 0, sizeof *cell);
	s->n_cells++;
	return cell;
}

void kvstore_cell_give(struct kvstore *s, void *take)
{
	union kvstore_cell *cell = take;
	cell->block.next = s->free_cell;
	s->free_cell = kvstore_cell_id(cell);
	s->n_cells--;
}

void kvstore_cells_free(struct kvstore *s)
{
	for (size_t i = 0; i < KVSTORE_CHUNKS && s->chunk[i] != NULL; i++) {
		s->chunk[i]->tag = 0;
		(void)munmap(s->chunk[i], KVSTORE_CHUNK_BYTES);
	}
}
