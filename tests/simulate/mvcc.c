/* SPDX-License-Identifier: Apache-2.0 */
/* mvcc: a log of all changes, which is read backwards. Scenarios have some hundred of them. */
#include <stdlib.h>
#include <string.h>

#include "mvcc.h"

void mvcc_init(struct mvcc *m, uint64_t cluster)
{
	*m = (struct mvcc){.cluster = cluster, .term = 2, .revision = 1};
	cgn_list_init(&m->leases);
}

static void lease_free(struct mvcc_lease *l)
{
	cgn_list_drop(&l->link);
	free(l);
}

void mvcc_fini(struct mvcc *m)
{
	for (size_t i = 0; i < m->n; i++) {
		free(m->events[i].key);
		free(m->events[i].value);
	}
	free(m->events);
	cgn_list_each_safe (l, &m->leases)
		lease_free(CGN_CONTAINER(l, struct mvcc_lease, link));
	*m = (struct mvcc){0};
	cgn_list_init(&m->leases);
}

static struct mvcc_event *event_new(struct mvcc *m)
{
	if (m->n == m->cap) {
		m->cap = m->cap > 0 ? 2 * m->cap : 64;
		m->events = CGN_GROWN(m->events, m->cap);
	}
	return &m->events[m->n++];
}

static struct cgn_str key_of(const struct mvcc_event *e)
{
	return (struct cgn_str){e->key, e->key_n};
}

void mvcc_copy(struct mvcc *to, const struct mvcc *from)
{
	mvcc_fini(to);
	*to = (struct mvcc){.cluster = from->cluster,
		.term = from->term,
		.revision = from->revision,
		.compacted = from->compacted};
	cgn_list_init(&to->leases);
	for (size_t i = 0; i < from->n; i++) {
		struct mvcc_event *e = event_new(to);
		*e = from->events[i];
		e->key = cgn_str_dupz(key_of(&from->events[i]));
		e->value = cgn_str_dupz((struct cgn_str){from->events[i].value, e->value_n});
	}
	cgn_list_each (l, &from->leases) {
		const struct mvcc_lease *had = CGN_CONTAINER(l, struct mvcc_lease, link);
		mvcc_grant(to, had->id, had->ttl, 0)->ends = had->ends;
	}
	to->leases_ever = from->leases_ever;
}

/* ---- reading ---- */

static int key_compare(struct cgn_str a, struct cgn_str b)
{
	int c = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);
	return c != 0 ? c : a.n < b.n ? -1 : a.n > b.n;
}

bool mvcc_in_range(const struct mvcc_range *r, struct cgn_str key)
{
	if (r->end.n == 0)
		return cgn_str_eq(r->key, key);
	return key_compare(key, r->key) >= 0 && key_compare(key, r->end) < 0;
}

const struct mvcc_event *mvcc_last(const struct mvcc *m, struct cgn_str key)
{
	for (size_t i = m->n; i-- > 0;)
		if (cgn_str_eq(key_of(&m->events[i]), key))
			return &m->events[i];
	return NULL;
}

const struct mvcc_event *mvcc_get(const struct mvcc *m, struct cgn_str key)
{
	const struct mvcc_event *e = mvcc_last(m, key);
	return e != NULL && e->put ? e : NULL;
}

static int event_compare(const void *a, const void *b)
{
	return key_compare(key_of(*(const struct mvcc_event *const *)a),
		key_of(*(const struct mvcc_event *const *)b));
}

static bool is_listed(const struct mvcc_event *const *v, size_t n, const struct mvcc_event *e)
{
	for (size_t i = 0; i < n; i++)
		if (cgn_str_eq(key_of(v[i]), key_of(e)))
			return true;
	return false;
}

size_t mvcc_range(const struct mvcc *m, const struct mvcc_range *r, const struct mvcc_event *out[MVCC_KEYS])
{
	size_t n = 0, puts = 0;
	for (size_t i = m->n; i-- > 0 && n < MVCC_KEYS;) {
		const struct mvcc_event *e = &m->events[i];
		bool seen = r->revision == 0 || e->revision <= r->revision;
		if (seen && mvcc_in_range(r, key_of(e)) && !is_listed(out, n, e))
			out[n++] = e;
	}
	for (size_t i = 0; i < n; i++)
		if (out[i]->put)
			out[puts++] = out[i];
	qsort(out, puts, sizeof *out, event_compare);
	return puts;
}

/* ---- writing ---- */

static void event_add(struct mvcc *m, struct cgn_str key, struct cgn_str value, bool put, uint64_t now)
{
	const struct mvcc_event *old = mvcc_get(m, key);
	int64_t create = old != NULL ? old->create : m->revision,
		version = old != NULL ? old->version + 1 : 1;
	char *name = cgn_str_dupz(key), *text = cgn_str_dupz(value);
	*event_new(m) = (struct mvcc_event){.revision = m->revision,
		.create = put ? create : 0,
		.version = put ? version : 0,
		.put = put,
		.at = now,
		.key = name,
		.key_n = key.n,
		.value = text,
		.value_n = value.n};
}

void mvcc_put(struct mvcc *m, struct cgn_str key, struct cgn_str value, int64_t lease, uint64_t now)
{
	m->revision++;
	event_add(m, key, value, true, now);
	m->events[m->n - 1].lease = lease;
}

size_t mvcc_delete(struct mvcc *m, const struct mvcc_range *r, uint64_t now)
{
	const struct mvcc_event *v[MVCC_KEYS];
	char *keys[MVCC_KEYS];
	size_t n = mvcc_range(m, r, v);
	if (n > 0)
		m->revision++;
	for (size_t i = 0; i < n; i++) /* The log moves while it grows */
		keys[i] = v[i]->key;
	for (size_t i = 0; i < n; i++)
		event_add(m, cgn_str_of(keys[i]), CGN_STR(""), false, now);
	return n;
}

/* ---- leases ---- */

struct mvcc_lease *mvcc_lease(const struct mvcc *m, int64_t id)
{
	cgn_list_each (l, &m->leases)
		if (CGN_CONTAINER(l, struct mvcc_lease, link)->id == id)
			return CGN_CONTAINER(l, struct mvcc_lease, link);
	return NULL;
}

struct mvcc_lease *mvcc_grant(struct mvcc *m, int64_t id, int64_t ttl, uint64_t now)
{
	struct mvcc_lease *l = CGN_NEW(struct mvcc_lease);
	m->leases_ever++;
	*l = (struct mvcc_lease){.id = id, .ttl = ttl, .ends = now + (uint64_t)ttl * CGN_SEC};
	cgn_list_push(&m->leases, &l->link);
	return l;
}

static const struct mvcc_event *key_of_lease(const struct mvcc *m, int64_t id)
{
	for (size_t i = m->n; i-- > 0;) {
		const struct mvcc_event *e = &m->events[i];
		if (e->put && e->lease == id && mvcc_get(m, key_of(e)) == e)
			return e;
	}
	return NULL;
}

void mvcc_revoke(struct mvcc *m, struct mvcc_lease *l, uint64_t now)
{
	const struct mvcc_event *e;
	int64_t id = l->id;
	lease_free(l);
	while ((e = key_of_lease(m, id)) != NULL) {
		struct mvcc_range one = {.key = key_of(e)};
		(void)mvcc_delete(m, &one, now);
	}
}

size_t mvcc_expire(struct mvcc *m, uint64_t now)
{
	size_t n = 0;
	cgn_list_each_safe (l, &m->leases) {
		struct mvcc_lease *lease = CGN_CONTAINER(l, struct mvcc_lease, link);
		if (lease->ends > now)
			continue;
		mvcc_revoke(m, lease, now);
		n++;
	}
	return n;
}

void mvcc_elect(struct mvcc *m, uint64_t now)
{
	m->term++;
	cgn_list_each (l, &m->leases) {
		struct mvcc_lease *lease = CGN_CONTAINER(l, struct mvcc_lease, link);
		lease->ends = now + (uint64_t)lease->ttl * CGN_SEC;
	}
}
