/* SPDX-License-Identifier: Apache-2.0 */
/* memory: the bytes that each process has allocated, and allocations that fail. Bytes are counted only if a scenario asks, and for the
 * process that allocated them, also when another one frees them. The world's own memory is not counted: world_priv.h
 * leads its allocations past these calls. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mix/mix.h"
#include "call_priv.h"
#include "world_priv.h"

#define LARGE CGN_SURE_BYTES /* A program has a way on without so much, and none without less */

struct piece {
	const void *at; /* NULL: the place is free */
	struct world_proc *proc;
	size_t bytes;
};
/* By address; at most half is in use. */
static struct pieces {
	bool on;
	size_t n, mask;
	struct piece *v;
} pieces;

static size_t place_of(const void *p)
{
	return (size_t)(mix_golden((uint64_t)(uintptr_t)p) >> 20) & pieces.mask;
}

static size_t piece_find(const void *p)
{
	size_t i = place_of(p);
	while (pieces.v[i].at != NULL && pieces.v[i].at != p)
		i = (i + 1) & pieces.mask;
	return i;
}

static void pieces_grow(void)
{
	struct pieces old = pieces;
	pieces.mask = 2 * old.mask + 1;
	pieces.v = __real_calloc(pieces.mask + 1, sizeof *pieces.v);
	if (pieces.v == NULL)
		world_fail("no memory to count memory");
	for (size_t i = 0; i <= old.mask; i++)
		if (old.v[i].at != NULL)
			pieces.v[piece_find(old.v[i].at)] = old.v[i];
	__real_free(old.v);
}

/* Close the gap at |i|: move the pieces back that were put behind their places because of it. */
static void gap_close(size_t i)
{
	for (size_t k = (i + 1) & pieces.mask; pieces.v[k].at != NULL; k = (k + 1) & pieces.mask) {
		size_t home = place_of(pieces.v[k].at);
		if (((k - home) & pieces.mask) < ((k - i) & pieces.mask))
			continue;
		pieces.v[i] = pieces.v[k];
		i = k;
	}
	pieces.v[i].at = NULL;
}

static void piece_forget(const void *p)
{
	size_t i = pieces.on && p != NULL ? piece_find(p) : 0;
	if (!pieces.on || p == NULL || pieces.v[i].at == NULL)
		return;
	pieces.v[i].proc->bytes -= pieces.v[i].bytes;
	pieces.n--;
	gap_close(i);
}

static void *piece_note(void *p, size_t n)
{
	work_add(0);
	if (!pieces.on || !is_simulated() || p == NULL)
		return p;
	piece_forget(p); /* Freed by a call that is not replaced */
	if (2 * ++pieces.n > pieces.mask)
		pieces_grow();
	pieces.v[piece_find(p)] = (struct piece){p, this_proc(), n};
	this_proc()->bytes += n;
	return p;
}

void world_count_memory(void)
{
	pieces = (struct pieces){.on = true, .mask = 0xffff};
	pieces.v = __real_calloc(pieces.mask + 1, sizeof *pieces.v);
	if (pieces.v == NULL)
		world_fail("no memory to count memory");
}

size_t world_bytes(const struct world_proc *p)
{
	return p->bytes;
}

void world_scarce(struct world_proc *p, uint64_t files, uint64_t memory)
{
	p->scarce.files = files;
	p->scarce.memory = memory;
}

bool proc_lacks_file(void)
{
	uint64_t share = this_proc()->scarce.files;
	if (share == 0 || !world_chance(share))
		return false;
	errno = EMFILE;
	return true;
}

static bool lacks_memory(size_t n)
{
	uint64_t share = n >= LARGE && is_simulated() ? this_proc()->scarce.memory : 0;
	if (share == 0 || !world_chance(share))
		return false;
	errno = ENOMEM;
	return true;
}

CALL(void *, malloc, size_t n)
{
	return lacks_memory(n) ? NULL : piece_note(__real_malloc(n), n);
}

CALL(void *, calloc, size_t n, size_t size)
{
	return piece_note(__real_calloc(n, size),
		n * size); /* cgn_zeroed's: a program ends without (ADR 28) */
}

CALL(void *, realloc, void *p, size_t n)
{
	if (lacks_memory(n))
		return NULL;
	void *grown = __real_realloc(p, n);
	if (grown != NULL)
		piece_forget(p);
	return piece_note(grown, n);
}

void *__wrap_reallocarray(void *p, size_t n, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
	void *grown = __real_realloc(p, n * size); /* cgn_grown's: a program ends without (ADR 28) */
	if (grown != NULL)
		piece_forget(p);
	return piece_note(grown, n * size);
}

CALL(void *, aligned_alloc, size_t alignment, size_t n)
{
	return piece_note(__real_aligned_alloc(alignment, n), n);
}

CALL(int, posix_memalign, void **out, size_t alignment, size_t n)
{
	int error = __real_posix_memalign(out, alignment, n);
	if (error == 0)
		(void)piece_note(*out, n);
	return error;
}

CALL(char *, strdup, const char *s)
{
	return piece_note(__real_strdup(s), strlen(s) + 1);
}

CALL(void, free, void *p)
{
	piece_forget(p);
	__real_free(p);
}
