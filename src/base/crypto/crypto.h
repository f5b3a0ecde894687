/* SPDX-License-Identifier: Apache-2.0 */
/* crypto: SHA-2, HMAC and their like, for which it is the only user of nettle. Random bytes come from io/os/loop. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"

#define CRYPTO_SHA256_BYTES 32

struct sha256 {
	uint8_t b[CRYPTO_SHA256_BYTES];
};

struct sha256 crypto_sha256(struct cgn_str bytes);
/* Return the HMAC-SHA256 (RFC 2104) of |bytes| with |key|. */
struct sha256 crypto_hmac_sha256(struct cgn_str key, struct cgn_str bytes);
/* Compare in a time that does not depend on the bytes. */
bool crypto_equal(const void *a, const void *b, size_t n);
/* Zero |n| bytes; the compiler cannot remove the call. */
void crypto_wipe(void *p, size_t n);

/* SHA-256 of bytes that come in parts. */
struct crypto_sum {
	_Alignas(16) uint8_t room[128];
};
void crypto_sum_begin(struct crypto_sum *s);
void crypto_sum_add(struct crypto_sum *s, const void *p, size_t n);
struct sha256 crypto_sum_end(struct crypto_sum *s);
