/* SPDX-License-Identifier: Apache-2.0 */
/* sum: XXH3-64 (github.com/Cyan4973/xxHash) of values, at the width that this processor has: Debian's library
 * is built for the least of x86-64, and AVX2 is twice as fast. The results are the library's. Any thread; a
 * sum under way belongs to one. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

uint64_t sum64(const void *p, size_t n);
/* Of pieces, as if they lay one behind the other. */
uint64_t sum64_pieces(const struct iovec *iov, size_t n);

/* The same bit by bit. */
struct sum64 {
	_Alignas(64) unsigned char state[640];
};
void sum64_begin(struct sum64 *s);
void sum64_add(struct sum64 *s, const void *p, size_t n);
/* sum64_add of what is copied on the way, where the processor can past its caches: for much that nobody reads
 * soon. No overlap. */
void sum64_copy(struct sum64 *s, void *to, const void *from, size_t n);
uint64_t sum64_end(const struct sum64 *s); /* of what was added so far */
