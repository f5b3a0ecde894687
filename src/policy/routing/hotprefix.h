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

#define HOTPREFIX_BYTES 65536 /* 8192 prefixes at once */

struct hotprefix;

/* |bytes| is rounded down to a power of two, at least 4 KiB. */
CGN_RC hotprefix_new(size_t bytes, struct hotprefix **out, struct cgn_err *err);
void hotprefix_free(struct hotprefix **take);

/* Any thread. |digest|: of the prefix's last block. */
/* One more. False: no place, it is not counted, and there is nothing to take away. */
bool hotprefix_add(struct hotprefix *h, uint64_t digest);
void hotprefix_drop(struct hotprefix *h, uint64_t digest);
uint32_t hotprefix_count(const struct hotprefix *h, uint64_t digest);
size_t hotprefix_bytes(const struct hotprefix *h);
