/* SPDX-License-Identifier: Apache-2.0 */
#include "base/table/table.h"

#include <stdlib.h>
#include <string.h>

#include "base/core/err.h"

#define LEAST_SLOTS 16

static uint32_t slot_home(const struct table *t, uint64_t slot)
{
	return (uint32_t)(slot >> 32) >> t->shift;
}

static uint64_t slot_make(uint64_t hash, uint32_t number)
{
	return mix_golden(hash) >> 32 << 32 | (number + 1U);
}

/* Return the first place behind the home of |slot| that is equal to |is|: to 0, or to |slot|, which is there. */
static uint32_t slot_place(const struct table *t, uint64_t slot, uint64_t is)
{
	uint32_t i = slot_home(t, slot);
	for (; t->slots[i] != is; i = (i + 1) & t->mask)
		CGN_MUST(t->slots[i] != 0);
	return i;
}

void table_fini(struct table *t)
{
	free(t->slots);
	*t = (struct table){0};
}

bool table_reserve(struct table *t, size_t n)
{
	const struct table old = *t;
	size_t n_slots = LEAST_SLOTS;
	CGN_MUST(n <= TABLE_MOST);
	while (n_slots / 4 * 3 < n)
		n_slots *= 2;
	if (old.slots != NULL && n_slots <= (size_t)old.mask + 1)
		return true;
	uint64_t *slots = calloc(n_slots, sizeof *slots);
	if (slots == NULL)
		return false;
	t->slots = slots;
	t->mask = (uint32_t)(n_slots - 1);
	t->shift = (uint32_t)__builtin_clz(t->mask);
	for (size_t i = 0; i <= old.mask && old.n > 0; i++)
		if (old.slots[i] != 0)
			slots[slot_place(t, old.slots[i], 0)] = old.slots[i];
	free(old.slots);
	return true;
}

void table_put(struct table *t, uint64_t hash, uint32_t number)
{
	CGN_MUST(number < TABLE_NONE);
	if (!table_reserve(t, (size_t)t->n + 1))
		cgn_out_of_memory(2 * table_bytes(t), CGN_HERE);
	uint64_t slot = slot_make(hash, number);
	t->slots[slot_place(t, slot, 0)] = slot;
	t->n++;
}

static uint32_t place_find(const struct table *t, uint64_t hash, uint32_t number)
{
	CGN_MUST(t->n > 0);
	uint64_t slot = slot_make(hash, number);
	return slot_place(t, slot, slot);
}

/* Each follower moves into the hole unless its home lies behind the hole. */
void table_drop(struct table *t, uint64_t hash, uint32_t number)
{
	uint32_t hole = place_find(t, hash, number);
	for (uint32_t i = (hole + 1) & t->mask; t->slots[i] != 0; i = (i + 1) & t->mask) {
		if (((i - slot_home(t, t->slots[i])) & t->mask) < ((i - hole) & t->mask))
			continue;
		t->slots[hole] = t->slots[i];
		hole = i;
	}
	t->slots[hole] = 0;
	t->n--;
}

void table_replace(struct table *t, uint64_t hash, uint32_t from, uint32_t to)
{
	CGN_MUST(to < TABLE_NONE);
	t->slots[place_find(t, hash, from)] = slot_make(hash, to);
}

void table_clear(struct table *t)
{
	if (t->n > 0)
		memset(t->slots, 0, ((size_t)t->mask + 1) * sizeof *t->slots);
	t->n = 0;
}

size_t table_bytes(const struct table *t)
{
	return t->slots != NULL ? ((size_t)t->mask + 1) * sizeof *t->slots : 0;
}
