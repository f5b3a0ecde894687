/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/who/quota/quota.h"

#include <stdlib.h>

#include "base/core/err.h"
#include "base/core/list.h"
#include "base/mix/mix.h"

#define QUOTA_TAG 0x90a7a01U
#define BUCKETS   1024

static const struct {
	const char *name, *nouns;
	uint32_t parts;
} rows[QUOTA_KINDS] = {
#define QUOTA(id, name, parts, nouns) {name, nouns, parts},
#include "policy/who/quota/quotas.def"
#undef QUOTA
};

struct quota_row {
	struct cgn_link link; /* In its bucket. */
	uint64_t of, held;
	enum quota_kind kind;
	char tenant[QUOTA_NAME_MAX + 1];
};
_Static_assert(sizeof(struct quota_row) <= QUOTA_BYTES, "the header says so");

struct quota_table {
	uint32_t tag;
	uint64_t total[QUOTA_KINDS];
	struct cgn_link buckets[BUCKETS];
};

const char *quota_name(enum quota_kind kind)
{
	return rows[kind].name;
}

const char *quota_nouns(enum quota_kind kind)
{
	return rows[kind].nouns;
}

/* ---- the rule ---- */

uint64_t quota_limit(enum quota_kind kind, uint64_t held, uint64_t free)
{
	const uint64_t most = UINT64_MAX / 1000, parts = rows[kind].parts;
	uint64_t all = held < most && free < most - held ? held + free : most;
	uint64_t limit = all * parts / 1000;
	return limit > 1 ? limit : 1;
}

bool quota_may(enum quota_kind kind, uint64_t held, uint64_t free, uint64_t want)
{
	if (want > free)
		return false;
	return held + want <= quota_limit(kind, held, free) || (held == 0 && want == 1);
}

bool quota_judge(const struct quota_ask *a, struct quota_told *told)
{
	*told = (struct quota_told){.held = a->held};
	if (a->alone) {
		told->full = a->want > a->free;
		return !told->full;
	}
	bool may = quota_may(a->kind, a->held, a->free, a->want);
	told->limit = quota_limit(a->kind, a->held, a->free);
	told->share = !may && a->held > 0 && a->held + a->want > told->limit;
	told->full = !may && !told->share;
	return may;
}

/* ---- counts of holders ---- */

struct quota_table *quota_table_new(void)
{
	struct quota_table *t = CGN_NEW(struct quota_table);
	t->tag = QUOTA_TAG;
	for (size_t i = 0; i < BUCKETS; i++)
		cgn_list_init(&t->buckets[i]);
	return t;
}

static void row_free(struct quota_row *row)
{
	cgn_list_drop(&row->link);
	free(row);
}

void quota_table_free(struct quota_table **take)
{
	struct quota_table *t = CGN_TAKE_LIVE(take, QUOTA_TAG);
	if (t == NULL)
		return;
	for (size_t i = 0; i < BUCKETS; i++)
		cgn_list_each_safe (it, &t->buckets[i])
			row_free(CGN_CONTAINER(it, struct quota_row, link));
	t->tag = 0;
	free(t);
}

static struct cgn_str name_cut(struct cgn_str name)
{
	return name.n > QUOTA_NAME_MAX ? (struct cgn_str){name.p, QUOTA_NAME_MAX} : name;
}

/* All supplies of a tenant's kind are in one bucket. */
static size_t bucket_of(enum quota_kind kind, struct cgn_str name)
{
	return mix_fnv1a(MIX_FNV1A + kind, name.p, name.n) % BUCKETS;
}

static struct quota_row *row_find(const struct quota_table *t, const struct quota_holder *h)
{
	struct cgn_str name = name_cut(h->tenant);
	cgn_list_each (it, &t->buckets[bucket_of(h->kind, name)]) {
		struct quota_row *row = CGN_CONTAINER(it, struct quota_row, link);
		if (row->kind == h->kind && row->of == h->of && cgn_str_is(name, row->tenant))
			return row;
	}
	return NULL;
}

uint64_t quota_held(const struct quota_table *t, const struct quota_holder *h)
{
	CGN_LIVE(t, QUOTA_TAG);
	const struct quota_row *row = row_find(t, h);
	return row != NULL ? row->held : 0;
}

void quota_add(struct quota_table *t, const struct quota_holder *h, uint64_t n)
{
	CGN_LIVE(t, QUOTA_TAG);
	struct quota_row *row = row_find(t, h);
	if (n == 0)
		return;
	if (row == NULL) {
		struct cgn_str name = name_cut(h->tenant);
		row = CGN_NEW(struct quota_row);
		row->kind = h->kind;
		row->of = h->of;
		(void)cgn_str_copyz(row->tenant, sizeof row->tenant, name);
		cgn_list_push(&t->buckets[bucket_of(h->kind, name)], &row->link);
	}
	row->held += n;
	t->total[h->kind] += n;
}

void quota_give(struct quota_table *t, const struct quota_holder *h, uint64_t n)
{
	CGN_LIVE(t, QUOTA_TAG);
	if (n == 0)
		return;
	struct quota_row *row = row_find(t, h);
	CGN_MUST(row != NULL && row->held >= n);
	row->held -= n;
	t->total[h->kind] -= n;
	if (row->held == 0)
		row_free(row);
}

uint64_t quota_total(const struct quota_table *t, enum quota_kind kind)
{
	CGN_LIVE(t, QUOTA_TAG);
	return t->total[kind];
}

uint64_t quota_tenant(const struct quota_table *t, enum quota_kind kind, struct cgn_str tenant)
{
	CGN_LIVE(t, QUOTA_TAG);
	uint64_t held = 0;
	struct cgn_str name = name_cut(tenant);
	cgn_list_each (it, &t->buckets[bucket_of(kind, name)]) {
		const struct quota_row *row = CGN_CONTAINER(it, struct quota_row, link);
		if (row->kind == kind && cgn_str_is(name, row->tenant))
			held += row->held;
	}
	return held;
}

static bool name_is_new(const struct quota_name_of *names, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(names[i].name, name) == 0)
			return false;
	return true;
}

size_t quota_tenants(const struct quota_table *t, struct quota_name_of *out, size_t max)
{
	size_t n = 0;
	CGN_LIVE(t, QUOTA_TAG);
	for (size_t i = 0; i < BUCKETS; i++)
		cgn_list_each (it, &t->buckets[i]) {
			const struct quota_row *row = CGN_CONTAINER(it, struct quota_row, link);
			if (n < max && name_is_new(out, n, row->tenant))
				(void)cgn_str_copyz(out[n++].name, sizeof out->name, cgn_str_of(row->tenant));
		}
	return n;
}
