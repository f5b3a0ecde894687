/* SPDX-License-Identifier: Apache-2.0 */
#include "base/digest/digest.h"

#include <blake3_impl.h>

#include "base/core/err.h"

static struct digest hasher_finish(const blake3_hasher *h)
{
	struct digest d;
	blake3_hasher_finalize(h, d.b, sizeof d.b);
	return d;
}

static void hasher_add(blake3_hasher *h, struct cgn_str bytes)
{
	if (bytes.n > 0)
		blake3_hasher_update(h, bytes.p, bytes.n);
}

struct digest digest_of(struct cgn_str bytes)
{
	blake3_hasher h;
	blake3_hasher_init(&h);
	hasher_add(&h, bytes);
	return hasher_finish(&h);
}

/* BLAKE3 inspects the CPU on first use and stores the result in a plain variable: do that while there is only
 * one thread. */
__attribute__((constructor)) static void look_at_cpu(void)
{
	(void)digest_of(CGN_STR(""));
}

struct digest digest_keyed(const struct digest *key, struct cgn_str bytes)
{
	blake3_hasher h;
	blake3_hasher_init_keyed(&h, key->b);
	hasher_add(&h, bytes);
	return hasher_finish(&h);
}

/* A block that BLAKE3 hashes as one chunk without a padded end can be hashed side by side with others. */
static bool block_is_plain(size_t block_bytes)
{
	return block_bytes > 0 && block_bytes <= BLAKE3_CHUNK_LEN && block_bytes % BLAKE3_BLOCK_LEN == 0;
}

/* Write the BLAKE3 hashes of |n| adjacent blocks, at most DIGEST_LANES. One call hashes as many blocks at once
 * as the CPU's vectors have lanes. */
static void blocks_hash(const uint8_t *p, size_t block_bytes, size_t n, struct digest *hashes)
{
	static const uint32_t iv[8] = {0x6A09E667UL, 0xBB67AE85UL, 0x3C6EF372UL, 0xA54FF53AUL, 0x510E527FUL,
		0x9B05688CUL, 0x1F83D9ABUL, 0x5BE0CD19UL};
	const uint8_t *blocks[DIGEST_LANES];
	if (!block_is_plain(block_bytes)) {
		for (size_t i = 0; i < n; i++, p += block_bytes)
			hashes[i] = digest_of((struct cgn_str){(const char *)p, block_bytes});
		return;
	}
	for (size_t i = 0; i < n; i++)
		blocks[i] = p + i * block_bytes;
	blake3_hash_many(blocks, n, block_bytes / BLAKE3_BLOCK_LEN, iv, 0, false, 0, CHUNK_START,
		CHUNK_END | ROOT, hashes[0].b);
}

/* As digest_keyed, for |n| adjacent messages of at most 64 bytes. Each digest is the key of the next one and
 * stays in the words that the compression works on: the hasher's state of 1.9 KB costs as much to set up as
 * one compression. */
static void messages_link(struct digest *last, const uint8_t *p, size_t bytes, size_t n,
	uint64_t *short_digests)
{
	uint8_t padded[BLAKE3_BLOCK_LEN] = {0};
	uint32_t cv[8];
	load_key_words(last->b, cv);
	for (size_t i = 0; i < n; i++, p += bytes) {
		const uint8_t *message = p;
		if (bytes < BLAKE3_BLOCK_LEN) {
			if (bytes > 0)
				memcpy(padded, p, bytes);
			message = padded;
		}
		blake3_compress_in_place(cv, message, (uint8_t)bytes, 0,
			KEYED_HASH | CHUNK_START | CHUNK_END | ROOT);
		short_digests[i] = (uint64_t)cv[1] << 32 | cv[0];
	}
	store_cv_words(last->b, cv);
}

/* A block that fills one compression at most is linked as it is. One of a hash's length is not, so that no
 * block can be chosen to look like the hash of another one. */
static bool block_is_short(size_t block_bytes)
{
	return block_bytes <= BLAKE3_BLOCK_LEN && block_bytes != DIGEST_BYTES;
}

void digest_chain_run(struct digest *last, const void *blocks, size_t block_bytes, size_t n,
	uint64_t *short_digests)
{
	struct digest hashes[DIGEST_LANES];
	const uint8_t *p = blocks;
	if (block_is_short(block_bytes)) {
		messages_link(last, p, block_bytes, n, short_digests);
		return;
	}
	for (size_t done = 0; done < n;) {
		size_t some = n - done < DIGEST_LANES ? n - done : DIGEST_LANES;
		blocks_hash(p + done * block_bytes, block_bytes, some, hashes);
		messages_link(last, hashes[0].b, DIGEST_BYTES, some, short_digests + done);
		done += some;
	}
}

struct digest digest_chain_next(const struct digest *previous, struct cgn_str block)
{
	struct digest d = *previous;
	uint64_t ignored;
	digest_chain_run(&d, block.p, block.n, 1, &ignored);
	return d;
}

uint64_t digest_short(const struct digest *d)
{
	uint64_t v = 0;
	for (unsigned i = 0; i < 8; i++)
		v |= (uint64_t)d->b[i] << 8 * i;
	return v;
}

struct digest digest_chain_root(struct cgn_str model, struct cgn_str lora, struct cgn_str cache_salt)
{
	struct digest_stream s;
	digest_root_start(&s, model);
	digest_stream_add(&s, lora);
	digest_root_end_part(&s);
	digest_stream_add(&s, cache_salt);
	digest_root_end_part(&s);
	return digest_stream_end(&s);
}

void digest_root_start(struct digest_stream *s, struct cgn_str model)
{
	digest_stream_start(s);
	digest_stream_add(s, CGN_STR("cognitora.prefix.v2"));
	s->n = 0;
	digest_stream_add(s, model);
	digest_root_end_part(s);
}

void digest_root_end_part(struct digest_stream *s)
{
	uint8_t length[8];
	for (unsigned i = 0; i < sizeof length; i++)
		length[i] = (uint8_t)(s->n >> 8 * i);
	blake3_hasher_update(&s->hasher, length, sizeof length);
	s->n = 0;
}

void digest_stream_start(struct digest_stream *s)
{
	blake3_hasher_init(&s->hasher);
	s->n = 0;
}

void digest_stream_add(void *stream, struct cgn_str piece)
{
	struct digest_stream *s = stream;
	hasher_add(&s->hasher, piece);
	s->n += piece.n;
}

struct digest digest_stream_end(const struct digest_stream *s)
{
	return hasher_finish(&s->hasher);
}

void digest_chain_start(struct digest_chain *c, const struct digest *root, size_t block_bytes,
	uint64_t *short_digests, size_t cap)
{
	CGN_MUST(block_bytes > 0);
	c->last = *root;
	c->block_bytes = block_bytes;
	c->n_staged = c->n_hashed = 0;
	c->short_digests = short_digests;
	c->n = 0;
	c->cap = cap;
}

/* Take whole blocks at |p|, up to the chain's end. */
static void chain_take(struct digest_chain *c, const char *p, size_t n)
{
	n = n < c->cap - c->n ? n : c->cap - c->n;
	digest_chain_run(&c->last, p, c->block_bytes, n, c->short_digests + c->n);
	c->n += n;
}

void digest_chain_flush(struct digest_chain *c)
{
	size_t n = c->n_staged / c->block_bytes, used = n * c->block_bytes;
	if (n == 0)
		return;
	chain_take(c, c->staged, n);
	memmove(c->staged, c->staged + used, c->n_staged - used);
	c->n_staged -= used;
}

/* Stage bytes up to the buffer's last whole block, and hash the buffer when it is full. */
static size_t bytes_stage(struct digest_chain *c, struct cgn_str bytes)
{
	size_t end = sizeof c->staged - sizeof c->staged % c->block_bytes, room = end - c->n_staged;
	size_t n = bytes.n < room ? bytes.n : room;
	memcpy(c->staged + c->n_staged, bytes.p, n);
	c->n_staged += n;
	if (c->n_staged == end)
		digest_chain_flush(c);
	return n;
}

/* Take the whole blocks of a long text where they lie, if nothing staged comes before them. */
static size_t bytes_take(struct digest_chain *c, struct cgn_str bytes)
{
	size_t blocks = bytes.n / c->block_bytes, open = c->n_staged % c->block_bytes;
	if (blocks < DIGEST_LANES)
		return bytes_stage(c, bytes);
	if (open > 0)
		return bytes_stage(c, (struct cgn_str){bytes.p, c->block_bytes - open});
	digest_chain_flush(c);
	chain_take(c, bytes.p, blocks);
	return blocks * c->block_bytes;
}

/* Give the staged bytes to the hasher of a block that is larger than the buffer. */
static void large_flush(struct digest_chain *c)
{
	if (c->n_hashed == 0)
		blake3_hasher_init(&c->large);
	hasher_add(&c->large, (struct cgn_str){c->staged, c->n_staged});
	c->n_hashed += c->n_staged;
	c->n_staged = 0;
	if (c->n_hashed < c->block_bytes)
		return;
	struct digest hash = hasher_finish(&c->large);
	messages_link(&c->last, hash.b, sizeof hash.b, 1, c->short_digests + c->n++);
	c->n_hashed = 0;
}

static size_t large_take(struct digest_chain *c, struct cgn_str bytes)
{
	size_t left = c->block_bytes - c->n_hashed - c->n_staged, room = sizeof c->staged - c->n_staged;
	size_t n = left < room ? left : room;
	n = n < bytes.n ? n : bytes.n;
	memcpy(c->staged + c->n_staged, bytes.p, n);
	c->n_staged += n;
	if (n == left || n == room)
		large_flush(c);
	return n;
}

void digest_chain_add(struct digest_chain *c, struct cgn_str bytes)
{
	bool large = c->block_bytes > sizeof c->staged;
	while (bytes.n > 0 && !digest_chain_full(c)) {
		size_t n = large ? large_take(c, bytes) : bytes_take(c, bytes);
		bytes.p += n;
		bytes.n -= n;
	}
}
