/* SPDX-License-Identifier: Apache-2.0 */
#include "base/crypto/crypto.h"

#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <nettle/sha2.h>
#include <nettle/version.h>
#include <string.h>

/* Nettle 4 takes the length of a digest from its algorithm. */
#if NETTLE_VERSION_MAJOR >= 4
#define DIGEST_ARGS(ctx, out) (ctx), (out)
#else
#define DIGEST_ARGS(ctx, out) (ctx), CRYPTO_SHA256_BYTES, (out)
#endif

static const uint8_t *bytes_of(struct cgn_str s)
{
	return (const uint8_t *)(s.p != NULL ? s.p : "");
}

struct sha256 crypto_sha256(struct cgn_str bytes)
{
	struct sha256 out;
	struct sha256_ctx ctx;
	sha256_init(&ctx);
	sha256_update(&ctx, bytes.n, bytes_of(bytes));
	sha256_digest(DIGEST_ARGS(&ctx, out.b));
	crypto_wipe(&ctx, sizeof ctx);
	return out;
}

struct sha256 crypto_hmac_sha256(struct cgn_str key, struct cgn_str bytes)
{
	struct sha256 out;
	struct hmac_sha256_ctx ctx;
	hmac_sha256_set_key(&ctx, key.n, bytes_of(key));
	hmac_sha256_update(&ctx, bytes.n, bytes_of(bytes));
	hmac_sha256_digest(DIGEST_ARGS(&ctx, out.b));
	crypto_wipe(&ctx, sizeof ctx);
	return out;
}

bool crypto_equal(const void *a, const void *b, size_t n)
{
	return memeql_sec(a, b, n) != 0;
}

void crypto_wipe(void *p, size_t n)
{
	explicit_bzero(p, n);
}

_Static_assert(sizeof(struct sha256_ctx) <= sizeof(struct crypto_sum), "nettle's state has room");

static struct sha256_ctx *state_of(struct crypto_sum *s)
{
	return (struct sha256_ctx *)(void *)s->room;
}

void crypto_sum_begin(struct crypto_sum *s)
{
	sha256_init(state_of(s));
}

void crypto_sum_add(struct crypto_sum *s, const void *p, size_t n)
{
	sha256_update(state_of(s), n, p);
}

struct sha256 crypto_sum_end(struct crypto_sum *s)
{
	struct sha256 out;
	sha256_digest(DIGEST_ARGS(state_of(s), out.b));
	return out;
}
