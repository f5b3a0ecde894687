/* SPDX-License-Identifier: Apache-2.0 */
/* tools: durations by the name of the tool. */
#include <stdlib.h>
#include <string.h>

#include "base/quantile/quantile.h"
#include "policy/route/session/session_priv.h"

const struct tool_times *tools_find(const struct tools *t, uint64_t key)
{
	for (size_t i = 0; i < SESSION_TOOLS; i++)
		if (t->row[i].used > 0 && t->row[i].key == key)
			return &t->row[i];
	return NULL;
}

struct tool_times *tools_row(struct tools *t, uint64_t key, struct cgn_str name)
{
	struct tool_times *oldest = &t->row[0];
	for (size_t i = 0; i < SESSION_TOOLS; i++) {
		struct tool_times *row = &t->row[i];
		if (row->used > 0 && row->key == key) {
			row->used = ++t->uses;
			return row;
		}
		oldest = row->used < oldest->used ? row : oldest;
	}
	*oldest = (struct tool_times){.key = key, .used = ++t->uses};
	name.n = name.n < SESSION_TEXT ? name.n : SESSION_TEXT;
	memcpy(oldest->name, name.p, name.n);
	return oldest;
}

void tool_times_add(struct tool_times *t, cgn_nsec took)
{
	cgn_nsec ms = took / CGN_MSEC;
	t->ms[t->next] = ms < 1 ? 1 : ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
	t->next = (t->next + 1) % TOOL_SAMPLES;
	t->n += t->n < TOOL_SAMPLES;
}

static int ms_order(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

cgn_nsec tool_times_quantile(const struct tool_times *t, double q)
{
	uint32_t sorted[TOOL_SAMPLES];
	if (t->n == 0)
		return 0;
	memcpy(sorted, t->ms, t->n * sizeof *sorted);
	qsort(sorted, t->n, sizeof *sorted, ms_order);
	return sorted[quantile_rank(t->n, q) - 1] * CGN_MSEC;
}
