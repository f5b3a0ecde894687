/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv/slots/entry.h"

#include <string.h>

#define ENTRY_MAGIC      0x31647261636e6763ULL /* "cgncard1" */
#define LINK_MAGIC       0x6b6e6c63U           /* "clnk" */
#define ENTRY_HEAD_BYTES 40

static void put_number(uint8_t *to, uint64_t v, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		to[i] = (uint8_t)(v >> 8 * i);
}

static uint64_t get_number(const char *from, unsigned bytes)
{
	uint64_t v = 0;
	for (unsigned i = bytes; i-- > 0;)
		v = v << 8 | (uint8_t)from[i];
	return v;
}

/* ---- keys ---- */

static void key_tail_make(const struct digest *fingerprint, struct cgn_str kind, uint8_t out[SLOT_KEY_TAIL])
{
	struct digest d = digest_keyed(fingerprint, kind);
	memcpy(out, d.b, SLOT_KEY_TAIL);
}

void slot_keys_make(const struct digest *fingerprint, struct slot_keys *out)
{
	key_tail_make(fingerprint, CGN_STR("card"), out->entry);
	key_tail_make(fingerprint, CGN_STR("link"), out->link);
}

struct digest slot_key(const uint8_t tail[SLOT_KEY_TAIL], uint64_t block)
{
	struct digest d;
	put_number(d.b, block, 8);
	memcpy(d.b + 8, tail, SLOT_KEY_TAIL);
	return d;
}

bool slot_key_is(const struct digest *key, const uint8_t tail[SLOT_KEY_TAIL], uint64_t *block)
{
	*block = digest_short(key);
	return memcmp(key->b + 8, tail, SLOT_KEY_TAIL) == 0;
}

/* ---- entries ---- */

struct slot_entry_piece slot_entry_piece(const struct slot_entry *c, uint32_t i)
{
	uint32_t first = (uint32_t)((c->file_bytes[0] + SLOT_PIECE_BYTES - 1) / SLOT_PIECE_BYTES);
	unsigned file = i >= first;
	uint64_t offset = SLOT_PIECE_BYTES * (file ? i - first : i), rest = c->file_bytes[file] - offset;
	CGN_MUST(i < slot_entry_pieces(c));
	return (struct slot_entry_piece){.file = file,
		.offset = offset,
		.bytes = rest < SLOT_PIECE_BYTES ? rest : SLOT_PIECE_BYTES};
}

static void put_words(struct cgn_buf *out, const uint64_t *words, size_t n)
{
	uint8_t one[8];
	for (size_t i = 0; i < n; i++) {
		put_number(one, words[i], 8);
		cgn_buf_add(out, one, sizeof one);
	}
}

void slot_entry_write(const struct slot_entry *c, struct cgn_buf *out)
{
	uint8_t head[ENTRY_HEAD_BYTES];
	put_number(head, ENTRY_MAGIC, 8);
	put_number(head + 8, c->tokens, 4);
	put_number(head + 12, c->prompt, 4);
	put_number(head + 16, c->file_bytes[0], 8);
	put_number(head + 24, c->file_bytes[1], 8);
	put_number(head + 32, c->n, 8);
	cgn_buf_add(out, head, sizeof head);
	put_words(out, c->sums, slot_entry_pieces(c));
	put_words(out, c->chain, c->n);
}

static bool sizes_ok(const struct slot_entry *c)
{
	const uint64_t most = SLOT_PIECE_BYTES * SLOT_ENTRY_MAX_PIECES;
	return c->file_bytes[0] > 0 && c->file_bytes[0] <= most &&
		c->file_bytes[1] <= most - c->file_bytes[0] && c->prompt <= c->tokens;
}

CGN_RC slot_entry_read(struct cgn_str bytes, uint64_t *words, struct slot_entry *out, struct cgn_err *err)
{
	if (bytes.n < ENTRY_HEAD_BYTES || get_number(bytes.p, 8) != ENTRY_MAGIC)
		return CGN_FAIL(err, INVALID, "the value is not a slot entry");
	struct slot_entry c = {.tokens = (uint32_t)get_number(bytes.p + 8, 4),
		.prompt = (uint32_t)get_number(bytes.p + 12, 4),
		.file_bytes = {get_number(bytes.p + 16, 8), get_number(bytes.p + 24, 8)}};
	uint64_t n = get_number(bytes.p + 32, 8);
	if (n == 0 || n > SLOT_ENTRY_MAX_CHAIN || !sizes_ok(&c) ||
		bytes.n != ENTRY_HEAD_BYTES + 8 * (n + slot_entry_pieces(&c)))
		return CGN_FAIL(err, INVALID, "the slot entry has impossible numbers");
	c.n = (size_t)n;
	c.sums = words;
	c.chain = words + slot_entry_pieces(&c);
	for (size_t i = 0; i < c.n + slot_entry_pieces(&c); i++)
		words[i] = get_number(bytes.p + ENTRY_HEAD_BYTES + 8 * i, 8);
	*out = c;
	return CGN_OK;
}

/* ---- links ---- */

void slot_link_write(const struct slot_link *l, uint8_t out[SLOT_LINK_BYTES])
{
	put_number(out, LINK_MAGIC, 4);
	put_number(out + 4, l->blocks, 4);
	put_number(out + 8, l->id, 8);
	put_number(out + 16, l->bytes, 8);
	put_number(out + 24, l->tokens, 4);
	put_number(out + 28, l->prompt, 4);
	put_number(out + 32, l->chain_blocks, 8);
}

CGN_RC slot_link_read(struct cgn_str bytes, struct slot_link *out, struct cgn_err *err)
{
	if (bytes.n != SLOT_LINK_BYTES || get_number(bytes.p, 4) != LINK_MAGIC)
		return CGN_FAIL(err, INVALID, "the value is not a link to a slot's state");
	uint64_t chain_blocks = get_number(bytes.p + 32, 8);
	struct slot_link l = {.id = get_number(bytes.p + 8, 8),
		.blocks = (uint32_t)get_number(bytes.p + 4, 4),
		.tokens = (uint32_t)get_number(bytes.p + 24, 4),
		.prompt = (uint32_t)get_number(bytes.p + 28, 4),
		.chain_blocks = (uint32_t)chain_blocks,
		.bytes = get_number(bytes.p + 16, 8)};
	if (chain_blocks == 0 || chain_blocks > SLOT_ENTRY_MAX_CHAIN || l.blocks == 0 ||
		l.blocks > chain_blocks || l.prompt > l.tokens || l.bytes == 0 ||
		l.bytes > SLOT_PIECE_BYTES * SLOT_ENTRY_MAX_PIECES)
		return CGN_FAIL(err, INVALID, "the link to a slot's state has impossible numbers");
	*out = l;
	return CGN_OK;
}

size_t slot_entry_links(size_t n, uint32_t at[SLOT_ENTRY_LINKS])
{
	/* Evenly spaced places, counted from the end, so that the last block always has a link; then
	 * reversed. */
	size_t stride = (n + SLOT_ENTRY_LINKS - 1) / SLOT_ENTRY_LINKS, k = 0;
	for (size_t i = n; i > 0; i = i > stride ? i - stride : 0)
		at[k++] = (uint32_t)(i - 1);
	for (size_t i = 0; i < k / 2; i++) {
		uint32_t low = at[i];
		at[i] = at[k - 1 - i];
		at[k - 1 - i] = low;
	}
	return k;
}
