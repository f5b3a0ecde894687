/* SPDX-License-Identifier: Apache-2.0 */
/* session, inside: how long tools take. */
#pragma once
#include "policy/session/session.h"

#define TOOL_BUCKETS 40

/* Durations of one tool. Bucket i counts those from 20 ms * 2^(i/2) on. */
struct tool_times {
	uint64_t key, used; /* |used|: number of the last use; 0: the row is free. */
	char name[SESSION_TEXT + 1];
	uint32_t n;
	uint16_t count[TOOL_BUCKETS];
};
struct tools {
	struct tool_times any; /* Durations of all tools. */
	struct tool_times row[SESSION_TOOLS];
	uint64_t uses;
};
/* Return the row of the tool |key|; a tool that is not known takes the row that was used longest ago. */
struct tool_times *tools_row(struct tools *t, uint64_t key, struct cgn_str name);
/* Return NULL for a tool that is not known. */
const struct tool_times *tools_find(const struct tools *t, uint64_t key);
void tool_times_add(struct tool_times *t, cgn_nsec took);
/* Return the duration that the share |q| of all stays below; 0 without durations. */
cgn_nsec tool_times_quantile(const struct tool_times *t, double q);
