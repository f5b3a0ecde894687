/* SPDX-License-Identifier: Apache-2.0 */
/* roster: entries by id, in a hash table of fixed size. */
#include <stdlib.h>

#include "base/mix/mix.h"
#include "joint/cluster/state/state_priv.h"

static struct cgn_link *bucket_of(const struct roster *r, const char *id)
{
	union {
		const struct cgn_link *in;
		struct cgn_link *out; /* Ids come from our own agents. */
	} link = {.in = &r->buckets[mix_fnv1a(MIX_FNV1A, id, strlen(id)) % ROSTER_BUCKETS]};
	return link.out;
}

static struct roster_entry *entry_of(struct cgn_link *l)
{
	return CGN_CONTAINER(l, struct roster_entry, link);
}

void roster_init(struct roster *r)
{
	r->n = 0;
	for (size_t i = 0; i < ROSTER_BUCKETS; i++)
		cgn_list_init(&r->buckets[i]);
}

struct roster_entry *roster_find(const struct roster *r, const char *id)
{
	struct cgn_link *b = bucket_of(r, id);
	cgn_list_each (it, b)
		if (strcmp(entry_of(it)->id, id) == 0)
			return entry_of(it);
	return NULL;
}

struct roster_entry *roster_add(struct roster *r, const char *id)
{
	size_t n = strlen(id) + 1;
	struct roster_entry *e = cgn_zeroed(1, sizeof *e + n, CGN_HERE);
	memcpy(e->id, id, n);
	cgn_list_push(bucket_of(r, id), &e->link);
	r->n++;
	return e;
}

void roster_drop(struct roster *r, struct roster_entry *e)
{
	cgn_list_drop(&e->link);
	r->n--;
	proto_node_free(&e->node);
	free(e);
}

void roster_each(struct roster *r, void (*fn)(void *arg, struct roster_entry *e), void *arg)
{
	for (size_t i = 0; i < ROSTER_BUCKETS; i++)
		cgn_list_each_safe (it, &r->buckets[i])
			fn(arg, entry_of(it));
}

static void entry_mark(void *arg, struct roster_entry *e)
{
	(void)arg;
	e->marked = true;
}

void roster_mark(struct roster *r)
{
	roster_each(r, entry_mark, NULL);
}

void roster_sweep(struct roster *r, void (*gone)(void *arg, struct roster_entry *e), void *arg)
{
	for (size_t i = 0; i < ROSTER_BUCKETS; i++)
		cgn_list_each_safe (it, &r->buckets[i])
			if (entry_of(it)->marked)
				gone(arg, entry_of(it));
}

static void entry_drop(void *arg, struct roster_entry *e)
{
	roster_drop(arg, e);
}

void roster_fini(struct roster *r)
{
	roster_each(r, entry_drop, r);
}
