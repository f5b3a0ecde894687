/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "lab/trace/trace.h"

uint32_t trace_number(struct trace_numbers *m, uint64_t key)
{
	uint32_t known = table_find(&m->table, key, m->key, sizeof *m->key);
	if (known != TABLE_NONE || m->n >= TRACE_MAX_IDS)
		return known;
	if (m->n == m->cap) {
		size_t cap = m->cap > 0 ? m->cap * 2 : 64;
		uint64_t *grown = reallocarray(m->key, cap, sizeof *grown);
		if (grown == NULL)
			return TRACE_NO_NUMBER;
		m->key = grown;
		m->cap = cap;
	}
	if (!table_reserve(&m->table, m->n + 1))
		return TRACE_NO_NUMBER;
	table_put(&m->table, key, (uint32_t)m->n);
	m->key[m->n] = key;
	return (uint32_t)m->n++;
}

void trace_numbers_fini(struct trace_numbers *m)
{
	table_fini(&m->table);
	free(m->key);
	*m = (struct trace_numbers){0};
}
