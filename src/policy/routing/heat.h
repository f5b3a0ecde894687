/* SPDX-License-Identifier: Apache-2.0 */
/* heat: how many requests that begin with a prefix are under way, so that one which its holders cannot carry
 * is computed once more, on purpose. A table of fixed size that all workers share without locks: entries are
 * single atomic words, {fingerprint 40, count 24}, in buckets of eight; one whose count is 0 is free. What
 * finds no place is not counted. It cools down by itself: every request that ends is taken away. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define HEAT_BYTES 65536 /* 8192 prefixes at once */

struct heat;

/* |bytes| is rounded down to a power of two, at least 4 KiB. */
CGN_RC heat_new(size_t bytes, struct heat **out, struct cgn_err *err);
void heat_free(struct heat **take);

/* Any thread. |digest|: of the prefix's last block. */
/* One more. False: no place, it is not counted, and there is nothing to take away. */
bool heat_add(struct heat *h, uint64_t digest);
void heat_drop(struct heat *h, uint64_t digest);
uint32_t heat_count(const struct heat *h, uint64_t digest);
size_t heat_bytes(const struct heat *h);
