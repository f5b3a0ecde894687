/* SPDX-License-Identifier: Apache-2.0 */
#include "base/crypto/crypto.h"

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

bool crypto_equal(const void *a, const void *b, size_t n)
{
	return memeql_sec(a, b, n) != 0;
}

void crypto_wipe(void *p, size_t n)
{
	explicit_bzero(p, n);
}
