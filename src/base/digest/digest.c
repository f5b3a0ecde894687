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

/* Do the hasher's work for one chunk without the hasher, whose state of 1.9 KB costs as much to set up as one
 * compression. |cv| is the key on entry and the digest on return. */
static void one_chunk(uint32_t cv[8], const uint8_t *p, size_t n)
{
	uint8_t flags = KEYED_HASH | CHUNK_START, last[BLAKE3_BLOCK_LEN];
	for (; n > BLAKE3_BLOCK_LEN; n -= BLAKE3_BLOCK_LEN, p += BLAKE3_BLOCK_LEN) {
		blake3_compress_in_place(cv, p, BLAKE3_BLOCK_LEN, 0, flags);
		flags = KEYED_HASH;
	}
	if (n < BLAKE3_BLOCK_LEN) {
		memset(last + n, 0, sizeof last - n);
		if (n > 0)
			memcpy(last, p, n);
		p = last;
	}
	blake3_compress_in_place(cv, p, (uint8_t)n, 0, flags | CHUNK_END | ROOT);
}

/* Each digest is the key of the next block: it stays in the words that the compression works on. */
static void chunks_hash(struct digest *last, const uint8_t *p, size_t block_bytes, size_t n,
	uint64_t *short_digests)
{
	uint32_t cv[8];
	load_key_words(last->b, cv);
	for (size_t i = 0; i < n; i++, p += block_bytes) {
		one_chunk(cv, p, block_bytes);
		short_digests[i] = (uint64_t)cv[1] << 32 | cv[0];
	}
	store_cv_words(last->b, cv);
}

void digest_chain_run(struct digest *last, const void *blocks, size_t block_bytes, size_t n,
	uint64_t *short_digests)
{
	const uint8_t *p = blocks;
	if (block_bytes <= BLAKE3_CHUNK_LEN) {
		chunks_hash(last, p, block_bytes, n, short_digests);
		return;
	}
	for (size_t i = 0; i < n; i++, p += block_bytes) {
		*last = digest_keyed(last, (struct cgn_str){(const char *)p, block_bytes});
		short_digests[i] = digest_short(last);
	}
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
	digest_stream_add(&s, CGN_STR("\0"));
	digest_stream_add(&s, cache_salt);
	return digest_stream_end(&s);
}

void digest_root_start(struct digest_stream *s, struct cgn_str model)
{
	digest_stream_start(s);
	digest_stream_add(s, CGN_STR("cognitora.prefix.v1"));
	digest_stream_add(s, model);
	digest_stream_add(s, CGN_STR("\0"));
}

void digest_stream_start(struct digest_stream *s)
{
	blake3_hasher_init(&s->hasher);
}

void digest_stream_add(void *stream, struct cgn_str piece)
{
	struct digest_stream *s = stream;
	hasher_add(&s->hasher, piece);
}

struct digest digest_stream_end(const struct digest_stream *s)
{
	return hasher_finish(&s->hasher);
}

void digest_chain_start(struct digest_chain *c, const struct digest *root, size_t block_bytes)
{
	CGN_MUST(block_bytes > 0);
	c->last = *root;
	c->block_bytes = block_bytes;
	c->filled = c->n_pending = 0;
	blake3_hasher_init_keyed(&c->block, root->b);
}

static void feed_flush(struct digest_chain *c)
{
	hasher_add(&c->block, (struct cgn_str){c->pending, c->n_pending});
	c->n_pending = 0;
}

static void feed_gather(struct digest_chain *c, struct cgn_str bytes)
{
	if (bytes.n > sizeof c->pending - c->n_pending)
		feed_flush(c);
	if (bytes.n > sizeof c->pending) {
		hasher_add(&c->block, bytes);
	} else if (bytes.n > 0) {
		memcpy(c->pending + c->n_pending, bytes.p, bytes.n);
		c->n_pending += bytes.n;
	}
}

static void next_block(struct digest_chain *c)
{
	feed_flush(c);
	c->last = hasher_finish(&c->block);
	c->filled = 0;
	blake3_hasher_init_keyed(&c->block, c->last.b);
}

bool digest_chain_feed(struct digest_chain *c, struct cgn_str *rest)
{
	size_t room = c->block_bytes - c->filled;
	struct cgn_str now = {rest->p, rest->n < room ? rest->n : room};
	feed_gather(c, now);
	c->filled += now.n;
	*rest = (struct cgn_str){rest->n > now.n ? rest->p + now.n : NULL, rest->n - now.n};
	if (c->filled < c->block_bytes)
		return false;
	next_block(c);
	return true;
}
