/* SPDX-License-Identifier: Apache-2.0 */
/* mix: hash finalizers and small random number generators. Results are part of stored and compared data
 * (replays, block names of the simulator): none may change. None is meant to resist an adversary. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/mix/mix.h"

/* 2^64 divided by the golden ratio: the increment of splitmix64, and the multiplier of Fibonacci hashing. */
#define MIX_GOLDEN UINT64_C(0x9e3779b97f4a7c15)
/* The start value of FNV-1a. */
#define MIX_FNV1A UINT64_C(0xcbf29ce484222325)

/* The finalizer of splitmix64 (Stafford's variant 13): a bijection. 0 stays 0. */
static inline uint64_t mix64(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}
/* The finalizer of MurmurHash3: a bijection. */
static inline uint64_t mix_murmur(uint64_t x)
{
	x = (x ^ x >> 33) * UINT64_C(0xff51afd7ed558ccd);
	x = (x ^ x >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
	return x ^ x >> 33;
}
/* Stafford's variant 1: a bijection. Tables that use it are independent of those that use mix64. */
static inline uint64_t mix_stafford(uint64_t x)
{
	x = (x ^ x >> 31) * UINT64_C(0x7fb5d329728ea185);
	x = (x ^ x >> 27) * UINT64_C(0x81dadef4bc2dd44d);
	return x ^ x >> 33;
}
/* Fibonacci hashing, for tables whose keys are digests already: the high bits are the mixed ones. */
static inline uint64_t mix_golden(uint64_t x)
{
	return x * MIX_GOLDEN;
}
/* FNV-1a of |n| bytes, from MIX_FNV1A or from the hash of what came before them. */
static inline uint64_t mix_fnv1a(uint64_t hash, const void *bytes, size_t n)
{
	const unsigned char *p = bytes;
	for (size_t i = 0; i < n; i++)
		hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
	return hash;
}

/* The first number of splitmix64 from the state |x|: mix64 with another place for 0. */
static inline uint64_t mix_seeded(uint64_t x)
{
	return mix64(x + MIX_GOLDEN);
}
/* The next number of splitmix64; any state is a good seed. */
static inline uint64_t mix_splitmix(uint64_t *state)
{
	return mix64(*state += MIX_GOLDEN);
}
/* The next state of xorshift64; the state must not be 0. */
static inline uint64_t mix_xorshift(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}
/* The next number of xorshift64*; the state must not be 0. */
static inline uint64_t mix_xorshift_star(uint64_t *state)
{
	return mix_xorshift(state) * UINT64_C(0x2545f4914f6cdd1d);
}
/* The next number of Knuth's linear congruential generator, of which only high bits are random. */
static inline uint64_t mix_lcg(uint64_t *state)
{
	return *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
}
