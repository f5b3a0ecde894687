/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/text/prefix/tokens.h"

#include <string.h>

#include "base/core/err.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	"ids are digested as they lie in memory, and digests are of little-endian numbers");

void prefix_tokens_start(struct prefix_tokens *c, const struct digest *root, uint32_t block_tokens,
	uint64_t *short_digests, size_t cap)
{
	CGN_MUST(block_tokens > 0 && block_tokens <= TOKENS_BLOCK_MAX);
	c->last = *root;
	c->block_tokens = block_tokens;
	c->n_left = 0;
	c->n_tokens = 0;
	c->short_digests = short_digests;
	c->n = 0;
	c->cap = cap;
}

static void close_blocks(struct prefix_tokens *c, const uint32_t *ids, size_t n)
{
	digest_chain_run(&c->last, ids, c->block_tokens * sizeof *ids, n, c->short_digests + c->n);
	c->n += n;
}

/* Take ids up to the next full block, or all full blocks; ids of an incomplete block stay. */
static size_t blocks_take(struct prefix_tokens *c, const uint32_t *ids, size_t n)
{
	size_t full = n / c->block_tokens, space = c->cap - c->n;
	if (c->n_left == 0 && full > 0) {
		full = full < space ? full : space;
		close_blocks(c, ids, full);
		return full * c->block_tokens;
	}
	size_t room = c->block_tokens - c->n_left, got = n < room ? n : room;
	memcpy(c->left + c->n_left, ids, got * sizeof *ids);
	c->n_left += (uint32_t)got;
	if (c->n_left == c->block_tokens) {
		close_blocks(c, c->left, 1);
		c->n_left = 0;
	}
	return got;
}

void prefix_tokens_add(struct prefix_tokens *c, const uint32_t *ids, size_t n)
{
	for (size_t at = 0; at < n && !prefix_tokens_full(c);) {
		size_t got = blocks_take(c, ids + at, n - at);
		at += got;
		c->n_tokens += got;
	}
}

void prefix_tokens_foreign(const struct digest *what, uint32_t ids[PREFIX_FOREIGN_IDS])
{
	for (size_t i = 0; i < PREFIX_FOREIGN_IDS; i++) {
		uint32_t v = 0;
		for (size_t k = 0; k < 4; k++)
			v |= (uint32_t)what->b[4 * i + k] << 8 * k;
		ids[i] = v | TOKENS_FOREIGN;
	}
}
