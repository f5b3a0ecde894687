/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/engine/residency.h"

#include "base/core/list.h"
#include "base/table/table.h"

#include <stdlib.h>

#define RESIDENCY_TAG 0x4e5d1001U

struct entry {
	uint64_t digest;
	struct cgn_link use;
};

struct residency {
	uint32_t tag;
	struct cgn_link used, unused; /* Entries; |used|: the newest first */
	size_t count, limit, room;
	struct entry *entry; /* |room| entries */
	struct table table;  /* Indices of |entry| */
};

static struct entry *entry_of(struct cgn_link *l)
{
	return CGN_CONTAINER(l, struct entry, use);
}

static struct entry *entry_find(const struct residency *r, uint64_t digest)
{
	uint32_t i = table_find(&r->table, digest, &r->entry->digest, sizeof *r->entry);
	return i != TABLE_NONE ? &r->entry[i] : NULL;
}

static void entry_move(struct entry *e, struct cgn_link *to)
{
	cgn_list_drop(&e->use);
	cgn_list_push_front(to, &e->use);
}

struct residency *residency_new(size_t capacity)
{
	CGN_MUST(capacity >= 1 && capacity <= RESIDENCY_MAX);
	struct residency *r = CGN_NEW(struct residency);
	*r = (struct residency){.tag = RESIDENCY_TAG,
		.limit = capacity,
		.room = capacity,
		.entry = CGN_NEW_ARRAY(struct entry, capacity)};
	cgn_list_init(&r->used);
	cgn_list_init(&r->unused);
	for (size_t i = 0; i < capacity; i++)
		cgn_list_push(&r->unused, &r->entry[i].use);
	return r;
}

void residency_free(struct residency **take)
{
	struct residency *r = CGN_TAKE_LIVE(take, RESIDENCY_TAG);
	if (r == NULL)
		return;
	r->tag = 0;
	free(r->entry);
	table_fini(&r->table);
	free(r);
}

bool residency_has(const struct residency *r, uint64_t digest)
{
	CGN_LIVE(r, RESIDENCY_TAG);
	return entry_find(r, digest) != NULL;
}

size_t residency_count(const struct residency *r)
{
	CGN_LIVE(r, RESIDENCY_TAG);
	return r->count;
}

static void drop_oldest(struct residency *r, residency_changed changed, void *user)
{
	CGN_MUST(r->count > 0);
	struct entry *e = entry_of(r->used.prev);
	table_drop(&r->table, e->digest, (uint32_t)(e - r->entry));
	entry_move(e, &r->unused);
	r->count--;
	if (changed != NULL)
		changed(user, e->digest);
}

static void add_one(struct residency *r, uint64_t digest, residency_changed changed, void *user)
{
	struct entry *e = entry_find(r, digest);
	if (e != NULL) {
		entry_move(e, &r->used);
		return;
	}
	if (r->count >= r->limit)
		drop_oldest(r, changed, user);
	e = entry_of(r->unused.next);
	e->digest = digest;
	table_put(&r->table, digest, (uint32_t)(e - r->entry));
	entry_move(e, &r->used);
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
