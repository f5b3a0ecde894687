/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "policy/who/billing/billing_priv.h"

struct billing *billing_new(void)
{
	struct billing *l = CGN_NEW(struct billing);
	l->tag = BILLING_TAG;
	l->table_of = UINT64_MAX;
	return l;
}

static void hour_fini(struct billing_hour *h)
{
	for (size_t i = 0; i < h->n; i++)
		free((void *)(uintptr_t)h->rows[i].names.tenant.p);
	free(h->rows);
}

void billing_free(struct billing **take)
{
	struct billing *l = CGN_TAKE_LIVE(take, BILLING_TAG);
	if (l == NULL)
		return;
	for (size_t i = 0; i < l->n; i++)
		hour_fini(&l->hours[i]);
	table_fini(&l->table);
	l->tag = 0;
	free(l);
}

uint64_t billing_version(const struct billing *l)
{
	CGN_LIVE(l, BILLING_TAG);
	return l->version;
}

size_t billing_at(const struct billing *l, uint64_t hour)
{
	size_t low = 0, high = l->n;
	CGN_LIVE(l, BILLING_TAG);
	while (low < high) {
		size_t mid = (low + high) / 2;
		if (l->hours[mid].hour < hour)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Return the hour, made if it is new; NULL: it is earlier than all of a full table. */
static struct billing_hour *hour_make(struct billing *l, uint64_t hour)
{
	size_t at = billing_at(l, hour);
	if (at < l->n && l->hours[at].hour == hour)
		return &l->hours[at];
	if (l->n == BILLING_HOURS && at == 0)
		return NULL;
	if (l->n == BILLING_HOURS) {
		hour_fini(&l->hours[0]);
		memmove(&l->hours[0], &l->hours[1], --l->n * sizeof l->hours[0]);
		at--;
	}
	memmove(&l->hours[at + 1], &l->hours[at], (l->n - at) * sizeof l->hours[0]);
	l->hours[at] = (struct billing_hour){.hour = hour};
	l->n++;
	return &l->hours[at];
}

/* ---- rows ---- */

static bool names_eq(const struct billing_names *a, const struct billing_names *b)
{
	return cgn_str_eq(a->tenant, b->tenant) && cgn_str_eq(a->key, b->key) &&
		cgn_str_eq(a->model, b->model);
}

static uint64_t names_hash(const struct billing_names *names)
{
	uint64_t hash = mix_fnv1a(MIX_FNV1A, names->tenant.p, names->tenant.n);
	return mix_fnv1a(mix_fnv1a(hash, names->key.p, names->key.n), names->model.p, names->model.n);
}

static struct billing_row *row_find(struct billing *l, const struct billing_hour *h,
	const struct billing_names *names)
{
	table_each (at, &l->table, names_hash(names))
		if (names_eq(&h->rows[at.number].names, names))
			return &h->rows[at.number];
	return NULL;
}

static void table_fill(struct billing *l, const struct billing_hour *h)
{
	if (l->table_of == h->hour)
		return;
	table_clear(&l->table);
	for (uint32_t i = 0; i < h->n; i++)
		table_put(&l->table, names_hash(&h->rows[i].names), i);
	l->table_of = h->hour;
}

static void names_copy(struct billing_names *to, const struct billing_names *from)
{
	char *p = CGN_NEW_ARRAY(char, from->tenant.n + from->key.n + from->model.n + 1);
	char *end = mempcpy(p, from->tenant.p, from->tenant.n);
	to->tenant = (struct cgn_str){p, from->tenant.n};
	to->key = (struct cgn_str){end, from->key.n};
	end = mempcpy(end, from->key.p, from->key.n);
	to->model = (struct cgn_str){end, from->model.n};
	(void)memcpy(end, from->model.p, from->model.n);
}

static struct billing_row *row_new(struct billing_hour *h, const struct billing_names *names)
{
	if (h->n == h->cap) {
		h->cap = h->cap > 0 ? 2 * h->cap : 4;
		h->rows = CGN_GROWN(h->rows, h->cap);
	}
	struct billing_row *row = &h->rows[h->n++];
	*row = (struct billing_row){0};
	names_copy(&row->names, names);
	return row;
}

/* Return the row of |names|; the last place of an hour is for all others. */
static struct billing_row *row_make(struct billing *l, struct billing_hour *h,
	const struct billing_names *names)
{
	static const struct billing_names other = {{BILLING_OTHER, sizeof BILLING_OTHER - 1},
		{BILLING_OTHER, sizeof BILLING_OTHER - 1}, {BILLING_OTHER, sizeof BILLING_OTHER - 1}};
	table_fill(l, h);
	struct billing_row *row = row_find(l, h, names);
	if (row == NULL && h->n >= BILLING_ROWS - 1)
		row = row_find(l, h, names = &other);
	if (row != NULL)
		return row;
	row = row_new(h, names);
	table_put(&l->table, names_hash(names), (uint32_t)(row - h->rows));
	return row;
}

static void amount_sum(uint64_t *to, uint64_t more)
{
	*to = more < UINT64_MAX - *to ? *to + more : UINT64_MAX;
}

void billing_sum(struct billing_amounts *to, const struct billing_amounts *more)
{
	amount_sum(&to->requests, more->requests);
	amount_sum(&to->estimated, more->estimated);
	amount_sum(&to->input, more->input);
	amount_sum(&to->cached, more->cached);
	amount_sum(&to->output, more->output);
	amount_sum(&to->money, more->money);
	amount_sum(&to->joules, more->joules);
}

static struct cgn_str name_cut(struct cgn_str s)
{
	return (struct cgn_str){s.n > 0 ? s.p : "-", s.n == 0 ? 1 : s.n < BILLING_NAME ? s.n : BILLING_NAME};
}

void billing_add(struct billing *l, uint64_t hour, const struct billing_names *names,
	const struct billing_amounts *more)
{
	const struct billing_names cut = {name_cut(names->tenant), name_cut(names->key),
		name_cut(names->model)};
	CGN_LIVE(l, BILLING_TAG);
	struct billing_hour *h = hour_make(l, hour);
	if (h == NULL)
		return;
	billing_sum(&row_make(l, h, &cut)->sum, more);
	l->version++;
}
