/* SPDX-License-Identifier: Apache-2.0 */
/* sum inside: one table for each vector width. A state may be passed from one table to another. */
#pragma once
#include "base/sum/sum.h"

struct sum_ops {
	uint64_t (*all)(const void *p, size_t n);
	void (*begin)(void *state);
	void (*add)(void *state, const void *p, size_t n);
	uint64_t (*end)(const void *state);
	void (*copy)(void *state, void *to, const void *from, size_t n);
};
extern const struct sum_ops sum_plain, sum_avx2;
