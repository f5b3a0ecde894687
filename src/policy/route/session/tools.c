/* SPDX-License-Identifier: Apache-2.0 */
/* tools: durations by the name of the tool. */
#include <math.h>
#include <string.h>

#include "policy/route/session/session_priv.h"

#define FIRST_MS  20.0
#define COUNT_MAX 256 /* Then all counts are halved, so that old durations fade. */

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

static size_t bucket_of(cgn_nsec took)
{
	double ms = (double)took / 1e6;
	if (ms < FIRST_MS)
		return 0;
	double at = 2 * log2(ms / FIRST_MS);
	return at < TOOL_BUCKETS - 1 ? (size_t)at : TOOL_BUCKETS - 1;
}

void tool_times_add(struct tool_times *t, cgn_nsec took)
{
	t->count[bucket_of(took)]++;
	if (++t->n < COUNT_MAX)
		return;
	t->n = 0;
	for (size_t i = 0; i < TOOL_BUCKETS; i++) {
		t->count[i] = (uint16_t)((t->count[i] + 1) / 2);
		t->n += t->count[i];
	}
}

cgn_nsec tool_times_quantile(const struct tool_times *t, double q)
{
	double below = 0, want = q * t->n;
	if (t->n == 0)
		return 0;
	for (size_t i = 0; i < TOOL_BUCKETS; i++) {
		if (t->count[i] > 0 && below + t->count[i] >= want) {
			double part = (want - below) / t->count[i];
			return (cgn_nsec)(FIRST_MS * exp2(((double)i + part) / 2) * 1e6);
		}
		below += t->count[i];
	}
	return (cgn_nsec)(FIRST_MS * exp2(TOOL_BUCKETS / 2.0) * 1e6);
}
