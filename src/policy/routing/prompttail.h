/* SPDX-License-Identifier: Apache-2.0 */
/* tail: what a node's cache holds behind the last full block of a prompt that it answered: the rest of the
 * prompt and the answer, which no digest names yet. The next turn of a conversation begins with both. A table
 * of fixed size that all workers share without locks: entries are single atomic words, {fingerprint 24,
 * answer 16, prompt 24}, in pairs of which the one not written last is replaced. What does not fit is
 * forgotten, a wrong match (2^-23) costs one wrong guess. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

struct prompttail_table;

/* |bytes| is rounded down to a power of two, at least 4 KiB. */
CGN_RC prompttail_new(size_t bytes, struct prompttail_table **out, struct cgn_err *err);
void prompttail_free(struct prompttail_table **take);

/* Any thread. |node| names the node (route_hash of its id), so that another that takes its slot inherits
 * nothing. */
struct prompttail {
	uint64_t prompt, answer; /* tokens, as the engine counted them; prompt 0: nothing is known */
};
/* The node answered a prompt whose last full block is |digest|. Numbers beyond an entry's bits are cut to the
 * largest that fit. */
void prompttail_put(struct prompttail_table *t, uint64_t digest, uint64_t node, struct prompttail tail);
struct prompttail prompttail_get(const struct prompttail_table *t, uint64_t digest, uint64_t node);
size_t prompttail_bytes(const struct prompttail_table *t);
