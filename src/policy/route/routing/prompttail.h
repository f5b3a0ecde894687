/* SPDX-License-Identifier: Apache-2.0 */
/* prompttail: the tokens in a node's cache behind the last full block of a prompt that it answered: the rest
 * of the prompt and the answer, which no digest names yet. The next turn of a conversation begins with both.
 * A table of fixed size that all workers share without locks. Entries are single atomic words, {fingerprint
 * 24, answer 16, prompt 24}, in pairs; a new entry replaces the older of a pair. A false match (probability
 * 2^-23) costs one wrong prediction. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

struct prompttail_table;

/* |bytes| is rounded down to a power of two, at least 4 KiB. */
CGN_RC prompttail_new(size_t bytes, struct prompttail_table **out, struct cgn_err *err);
void prompttail_free(struct prompttail_table **take);

/* Any thread. |node| is route_hash of the node's id, so that another node with the same slot finds
 * nothing. */
struct prompttail {
	uint64_t prompt, answer; /* Tokens as the engine counted them; prompt 0: unknown. */
};
/* Record that the node answered a prompt whose last full block is |digest|. Numbers too large for an entry
 * are capped. */
void prompttail_put(struct prompttail_table *t, uint64_t digest, uint64_t node, struct prompttail tail);
struct prompttail prompttail_get(const struct prompttail_table *t, uint64_t digest, uint64_t node);
size_t prompttail_bytes(const struct prompttail_table *t);
