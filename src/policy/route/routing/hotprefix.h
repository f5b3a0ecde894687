/* SPDX-License-Identifier: Apache-2.0 */
/* hotprefix: counts the requests in flight by prefix, so that a prefix that its holders have no capacity for
 * is computed once more, on purpose. A table of fixed size that all workers share without locks. Entries are
 * single atomic words, {fingerprint 40, count 24}, in buckets of eight; an entry with count 0 is free. A
 * prefix that finds no entry is not counted. Each request that ends is subtracted again. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define HOTPREFIX_BYTES 65536 /* 8192 prefixes at once. */

struct hotprefix;

/* |bytes| is rounded down to a power of two, at least 4 KiB. */
struct hotprefix *hotprefix_new(size_t bytes);
void hotprefix_free(struct hotprefix **take);

/* Any thread. |digest| is the digest of the prefix's last block. */
/* Count one more request. Return false when there is no free entry: do not drop it then. */
bool hotprefix_add(struct hotprefix *h, uint64_t digest);
void hotprefix_drop(struct hotprefix *h, uint64_t digest);
uint32_t hotprefix_count(const struct hotprefix *h, uint64_t digest);
size_t hotprefix_bytes(const struct hotprefix *h);
