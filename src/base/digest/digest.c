/* SPDX-License-Identifier: Apache-2.0 */
#include "base/digest/digest.h"

#include "base/core/err.h"

static struct digest finish(const blake3_hasher *h)
{
	struct digest d;
	blake3_hasher_finalize(h, d.b, sizeof d.b);
	return d;
}

static void add(blake3_hasher *h, struct cgn_str bytes)
{
	if (bytes.n > 0)
		blake3_hasher_update(h, bytes.p, bytes.n);
}

struct digest digest_of(struct cgn_str bytes)
{
	blake3_hasher h;
	blake3_hasher_init(&h);
	add(&h, bytes);
	return finish(&h);
}

/* BLAKE3 looks at the CPU when it is first used, and keeps what it found in a plain variable: do that while there is one thread. */
__attribute__((constructor)) static void look_at_cpu(void)
{
	(void)digest_of(CGN_STR(""));
}

struct digest digest_keyed(const struct digest *key, struct cgn_str bytes)
{
	blake3_hasher h;
	blake3_hasher_init_keyed(&h, key->b);
	add(&h, bytes);
	return finish(&h);
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
	static const char zero[1] = {0};
	blake3_hasher h;
	blake3_hasher_init(&h);
	add(&h, CGN_STR("cognitora.prefix.v1"));
	add(&h, model);
	add(&h, (struct cgn_str){zero, 1});
	add(&h, lora);
	add(&h, (struct cgn_str){zero, 1});
	add(&h, cache_salt);
	return finish(&h);
}

void digest_chain_start(struct digest_chain *c, const struct digest *root, size_t block_bytes)
{
	CGN_MUST(block_bytes > 0);
	c->last = *root;
	c->block_bytes = block_bytes;
	c->filled = c->n_pending = 0;
	blake3_hasher_init_keyed(&c->block, root->b);
}

static void flush(struct digest_chain *c)
{
	add(&c->block, (struct cgn_str){c->pending, c->n_pending});
	c->n_pending = 0;
}

static void gather(struct digest_chain *c, struct cgn_str bytes)
{
	if (bytes.n > sizeof c->pending - c->n_pending)
		flush(c);
	if (bytes.n > sizeof c->pending) {
		add(&c->block, bytes);
	} else if (bytes.n > 0) {
		memcpy(c->pending + c->n_pending, bytes.p, bytes.n);
		c->n_pending += bytes.n;
	}
}

static void next_block(struct digest_chain *c)
{
	flush(c);
	c->last = finish(&c->block);
	c->filled = 0;
	blake3_hasher_init_keyed(&c->block, c->last.b);
}

bool digest_chain_feed(struct digest_chain *c, struct cgn_str *rest)
{
	size_t room = c->block_bytes - c->filled;
	struct cgn_str now = {rest->p, rest->n < room ? rest->n : room};
	gather(c, now);
	c->filled += now.n;
	*rest = (struct cgn_str){rest->n > now.n ? rest->p + now.n : NULL, rest->n - now.n};
	if (c->filled < c->block_bytes)
		return false;
	next_block(c);
	return true;
}
