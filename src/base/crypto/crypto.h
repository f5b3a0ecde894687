/* SPDX-License-Identifier: Apache-2.0 */
/* crypto: the wall around nettle; nobody else includes it. Randomness is io/loop's. Any thread. */
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
/* In a time that tells nothing of where they differ. */
bool crypto_equal(const void *a, const void *b, size_t n);
/* Zero |n| bytes; no compiler drops it. */
void crypto_wipe(void *p, size_t n);
