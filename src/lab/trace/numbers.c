/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table with open addressing, at most half full. */
#include <stdlib.h>

#include "lab/trace/trace.h"

static size_t find_bucket(const struct trace_numbers *m, uint64_t key)
{
	size_t at = trace_digest(key) & (m->buckets - 1);
	while (m->bucket[at] != TRACE_NO_NUMBER && m->key[m->bucket[at]] != key)
		at = (at + 1) & (m->buckets - 1);
	return at;
}

static bool grow_table(struct trace_numbers *m)
{
	size_t buckets = m->buckets > 0 ? m->buckets * 2 : 64;
	uint32_t *bucket = malloc(buckets * sizeof *bucket);
	uint64_t *key = reallocarray(m->key, buckets / 2, sizeof *key);
	m->key = key != NULL ? key : m->key;
	if (bucket == NULL || key == NULL) {
		free(bucket);
		return false;
	}
	for (size_t i = 0; i < buckets; i++)
		bucket[i] = TRACE_NO_NUMBER;
	free(m->bucket);
	m->bucket = bucket;
	m->buckets = buckets;
	for (size_t i = 0; i < m->n; i++)
		m->bucket[find_bucket(m, m->key[i])] = (uint32_t)i;
	return true;
}

uint32_t trace_number(struct trace_numbers *m, uint64_t key)
{
	if (m->n >= m->buckets / 2 && (m->n >= TRACE_MAX_IDS || !grow_table(m)))
		return TRACE_NO_NUMBER;
	size_t at = find_bucket(m, key);
	if (m->bucket[at] == TRACE_NO_NUMBER) {
		m->key[m->n] = key;
		m->bucket[at] = (uint32_t)m->n++;
	}
	return m->bucket[at];
}

void trace_numbers_fini(struct trace_numbers *m)
{
	free(m->bucket);
	free(m->key);
	*m = (struct trace_numbers){0};
}
