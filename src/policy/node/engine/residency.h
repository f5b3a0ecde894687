/* SPDX-License-Identifier: Apache-2.0 */
/* residency: a bounded record, least recently used out first, of the prompt blocks that an engine is assumed
 * to hold: the digests that routers sent with their requests. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define RESIDENCY_MAX 65536 /* Entries when the engine does not report its size; about 40 bytes each */

struct residency;
/* A digest entered or left the record; residency_has tells which. */
typedef void (*residency_changed)(void *user, uint64_t digest);

/* Create a record of |capacity| entries, 1 to RESIDENCY_MAX. */
struct residency *residency_new(size_t capacity);
void residency_free(struct residency **take);
bool residency_has(const struct residency *r, uint64_t digest);
size_t residency_count(const struct residency *r);
/* Record a prompt that was prefilled: its chain, first block first. The leading blocks become the most
 * recent, since a later block is of no use without them. Of a chain longer than the capacity only the
 * beginning is recorded. |changed| may be NULL. */
void residency_add(struct residency *r, const uint64_t *chain, size_t n, residency_changed changed,
	void *user);
/* Set the bound, at most the capacity of residency_new; the oldest entries leave. */
void residency_limit(struct residency *r, size_t capacity, residency_changed changed, void *user);
void residency_clear(struct residency *r, residency_changed changed, void *user);
