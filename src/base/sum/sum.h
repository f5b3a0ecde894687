/* SPDX-License-Identifier: Apache-2.0 */
/* sum: XXH3-64 (github.com/Cyan4973/xxHash) of values, with the widest vector instructions of this processor:
 * Debian's library is built for baseline x86-64, and AVX2 is twice as fast. The results equal the library's.
 * Any thread; one thread for each unfinished sum. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

uint64_t sum64(const void *p, size_t n);
/* Return the sum of adjacent pieces, as of one value. */
uint64_t sum64_pieces(const struct iovec *iov, size_t n);

/* An unfinished sum over a value that comes in pieces. */
struct sum64 {
	_Alignas(64) unsigned char state[640];
};
void sum64_begin(struct sum64 *s);
void sum64_add(struct sum64 *s, const void *p, size_t n);
/* Add |n| bytes at |from| and copy them to |to|, past the caches where the processor can: for large values
 * that are not read soon. The ranges must not overlap. */
void sum64_copy(struct sum64 *s, void *to, const void *from, size_t n);
uint64_t sum64_end(const struct sum64 *s); /* Return the sum of all bytes added so far. */
