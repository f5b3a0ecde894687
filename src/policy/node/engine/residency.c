/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/engine/residency.h"

#include "base/mix/mix.h"

#include <stdlib.h>

#define RESIDENCY_TAG 0x4e5d1001U
#define NONE          UINT32_MAX

struct entry {
	uint64_t digest;
	uint32_t newer, older;
};

/* The entries are in an array and linked by age. An open-addressed table of entry numbers is at most half
 * full. */
struct residency {
	uint32_t tag;
	uint32_t newest, oldest;
	uint32_t free_head; /* Free entries, linked by |older| */
	uint32_t mask;      /* Mask for indices of |slot| */
	size_t count, limit, room;
	struct entry *entry; /* |room| entries */
	uint32_t *slot;      /* |mask| + 1 entry numbers, or NONE */
};

static uint32_t slot_home(const struct residency *r, uint64_t digest)
{
	return (uint32_t)(mix_golden(digest) >> 32) & r->mask;
}

/* Return the table slot of the digest, or the empty slot where the digest belongs. */
static uint32_t slot_of(const struct residency *r, uint64_t digest)
{
	uint32_t at = slot_home(r, digest);
	while (r->slot[at] != NONE && r->entry[r->slot[at]].digest != digest)
		at = (at + 1) & r->mask;
	return at;
}

/* Later entries of the run move up, so that no search stops before them. */
static void slot_vacate(struct residency *r, uint32_t hole)
{
	r->slot[hole] = NONE;
	for (uint32_t at = (hole + 1) & r->mask; r->slot[at] != NONE; at = (at + 1) & r->mask) {
		uint32_t want = slot_home(r, r->entry[r->slot[at]].digest);
		if (((at - want) & r->mask) < ((at - hole) & r->mask))
			continue;
		r->slot[hole] = r->slot[at];
		r->slot[at] = NONE;
		hole = at;
	}
}

static void unlink_entry(struct residency *r, uint32_t i)
{
	struct entry *e = &r->entry[i];
	if (e->newer != NONE)
		r->entry[e->newer].older = e->older;
	else
		r->newest = e->older;
	if (e->older != NONE)
		r->entry[e->older].newer = e->newer;
	else
		r->oldest = e->newer;
}

static void link_newest(struct residency *r, uint32_t i)
{
	r->entry[i].newer = NONE;
	r->entry[i].older = r->newest;
	if (r->newest != NONE)
		r->entry[r->newest].newer = i;
	else
		r->oldest = i;
	r->newest = i;
}

static void all_free(struct residency *r)
{
	r->newest = r->oldest = NONE;
	r->count = 0;
	for (size_t i = 0; i <= r->mask; i++)
		r->slot[i] = NONE;
	for (size_t i = 0; i < r->room; i++)
		r->entry[i].older = i + 1 < r->room ? (uint32_t)i + 1 : NONE;
	r->free_head = 0;
}

CGN_RC residency_new(size_t capacity, struct residency **out, struct cgn_err *err)
{
	CGN_MUST(capacity >= 1 && capacity <= RESIDENCY_MAX);
	size_t slots = 4;
	while (slots < 2 * capacity)
		slots *= 2;
	struct residency *r = calloc(1, sizeof *r);
	if (r != NULL) {
		*r = (struct residency){.tag = RESIDENCY_TAG,
			.mask = (uint32_t)slots - 1,
			.limit = capacity,
			.room = capacity};
		r->entry = calloc(capacity, sizeof *r->entry);
		r->slot = calloc(slots, sizeof *r->slot);
	}
	if (r == NULL || r->entry == NULL || r->slot == NULL) {
		residency_free(&r);
		return CGN_FAIL(err, NO_MEMORY, "no memory for a record of %zu blocks", capacity);
	}
	all_free(r);
	*out = r;
	return CGN_OK;
}

void residency_free(struct residency **take)
{
	struct residency *r = *take;
	*take = NULL;
	if (r == NULL)
		return;
	CGN_LIVE(r, RESIDENCY_TAG);
	r->tag = 0;
	free(r->entry);
	free(r->slot);
	free(r);
}

bool residency_has(const struct residency *r, uint64_t digest)
{
	CGN_LIVE(r, RESIDENCY_TAG);
	return r->slot[slot_of(r, digest)] != NONE;
}

size_t residency_count(const struct residency *r)
{
	CGN_LIVE(r, RESIDENCY_TAG);
	return r->count;
}

static void drop_oldest(struct residency *r, residency_changed changed, void *user)
{
	uint32_t i = r->oldest;
	CGN_MUST(i != NONE);
	uint64_t digest = r->entry[i].digest;
	slot_vacate(r, slot_of(r, digest));
	unlink_entry(r, i);
	r->entry[i].older = r->free_head;
	r->free_head = i;
	r->count--;
	if (changed != NULL)
		changed(user, digest);
}

static void add_one(struct residency *r, uint64_t digest, residency_changed changed, void *user)
{
	uint32_t at = slot_of(r, digest);
	if (r->slot[at] != NONE) {
		uint32_t known = r->slot[at];
		unlink_entry(r, known);
		link_newest(r, known);
		return;
	}
	if (r->count >= r->limit) {
		drop_oldest(r, changed, user);
		at = slot_of(r, digest); /* The entries that moved up may use the slot */
	}
	uint32_t i = r->free_head;
	CGN_MUST(i != NONE);
	r->free_head = r->entry[i].older;
	r->entry[i].digest = digest;
	r->slot[at] = i;
	link_newest(r, i);
	r->count++;
	if (changed != NULL)
		changed(user, digest);
}

void residency_add(struct residency *r, const uint64_t *chain, size_t n, residency_changed changed,
	void *user)
{
	CGN_LIVE(r, RESIDENCY_TAG);
	if (n > r->limit)
		n = r->limit;
	while (n > 0)
		add_one(r, chain[--n], changed, user);
}

void residency_limit(struct residency *r, size_t capacity, residency_changed changed, void *user)
{
	CGN_LIVE(r, RESIDENCY_TAG);
	CGN_MUST(capacity >= 1);
	r->limit = capacity < r->room ? capacity : r->room;
	while (r->count > r->limit)
		drop_oldest(r, changed, user);
}

void residency_clear(struct residency *r, residency_changed changed, void *user)
{
	CGN_LIVE(r, RESIDENCY_TAG);
	while (r->count > 0)
		drop_oldest(r, changed, user);
}
