/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/prefix/tokens.h"

#include <string.h>

#include "base/core/err.h"

void tokens_chain_start(
	struct tokens_chain *c, const struct digest *root, uint32_t block_tokens, uint64_t *short_digests, size_t cap)
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

static void put_le32(char *to, uint32_t v)
{
	to[0] = (char)(v & 0xff);
	to[1] = (char)(v >> 8 & 0xff);
	to[2] = (char)(v >> 16 & 0xff);
	to[3] = (char)(v >> 24);
}

static void close_block(struct tokens_chain *c, const uint32_t *ids)
{
	char bytes[4 * TOKENS_BLOCK_MAX];
	for (size_t i = 0; i < c->block_tokens; i++)
		put_le32(bytes + 4 * i, ids[i]);
	c->last = digest_chain_next(&c->last, (struct cgn_str){bytes, 4 * (size_t)c->block_tokens});
	c->short_digests[c->n++] = digest_short(&c->last);
}

/* Ids up to the next full block; those of a block that is not full stay behind. */
static size_t take(struct tokens_chain *c, const uint32_t *ids, size_t n)
{
	if (c->n_left == 0 && n >= c->block_tokens) {
		close_block(c, ids);
		return c->block_tokens;
	}
	size_t room = c->block_tokens - c->n_left, got = n < room ? n : room;
	memcpy(c->left + c->n_left, ids, got * sizeof *ids);
	c->n_left += (uint32_t)got;
	if (c->n_left == c->block_tokens) {
		close_block(c, c->left);
		c->n_left = 0;
	}
	return got;
}

void tokens_chain_add(struct tokens_chain *c, const uint32_t *ids, size_t n)
{
	for (size_t at = 0; at < n && !tokens_chain_full(c);) {
		size_t got = take(c, ids + at, n - at);
		at += got;
		c->n_tokens += got;
	}
}

void tokens_foreign(const struct digest *what, uint32_t ids[TOKENS_FOREIGN_IDS])
{
	for (size_t i = 0; i < TOKENS_FOREIGN_IDS; i++) {
		uint32_t v = 0;
		for (size_t k = 0; k < 4; k++)
			v |= (uint32_t)what->b[4 * i + k] << 8 * k;
		ids[i] = v | TOKENS_FOREIGN;
	}
}
