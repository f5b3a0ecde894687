/* SPDX-License-Identifier: Apache-2.0 */
/* kvstore_world: a store under test, its clock, and values that identify their key and version. */
#pragma once
#include "base/mix/mix.h"
#include "joint/kv/kvstore/kvstore.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>

#include <cmocka.h>

#include "telemetry_world.h"

#define MIB ((uint64_t)1 << 20)

static _Atomic uint64_t kvw_wall = 1000000;
CGN_UNUSED static uint64_t kvw_clock(void)
{
	return kvw_wall;
}

CGN_UNUSED static struct kvstore *kvw_store(uint64_t bytes)
{
	struct kvstore_cfg cfg = {.telemetry = test_telemetry(), .ram_bytes = bytes, .wall_ms = kvw_clock};
	struct kvstore *s = NULL;
	struct cgn_err err = {0};
	kvw_wall = 1000000;
	assert_true(cgn_ok(kvstore_new(&cfg, &s, &err)));
	return s;
}

CGN_UNUSED static struct block_key kvw_key(uint64_t n)
{
	return (struct block_key){.digest = digest_of((struct cgn_str){(const char *)&n, sizeof n}),
		.segment = (uint32_t)(n % 3)};
}

/* Return byte |i| of the value of key |n| in version |v|. */
static inline char kvw_byte(uint64_t n, uint64_t v, uint64_t i)
{
	uint64_t word = (i / 8 + 1) * MIX_GOLDEN ^ (n * 0x100000001b3ULL + v);
	return (char)(word >> i % 8 * 8);
}

/* Fill through kvstore_writer_room, so that the value is written in place. */
CGN_UNUSED static void kvw_fill(struct kvstore_writer *w, uint64_t n, uint64_t v)
{
	uint64_t at = 0;
	while (kvstore_writer_missing(w) > 0) {
		struct iovec iov[3];
		size_t n_iov = 0;
		uint64_t room = kvstore_writer_room(w, iov, 3, &n_iov);
		for (size_t i = 0; i < n_iov; i++)
			for (size_t k = 0; k < iov[i].iov_len; k++)
				((char *)iov[i].iov_base)[k] = kvw_byte(n, v, at++);
		kvstore_writer_wrote(w, room);
	}
}

CGN_UNUSED static cgn_rc kvw_try_put(struct kvstore *s, uint64_t n, uint64_t v, uint64_t size,
	const struct block_meta *meta)
{
	struct block_key k = kvw_key(n);
	struct kvstore_writer *w = NULL;
	struct cgn_err err = {0};
	CGN_TRY(kvstore_put(s, &k, meta, size, &w, &err));
	kvw_fill(w, n, v);
	return kvstore_writer_commit(&w, NULL, 0, &err);
}

CGN_UNUSED static void kvw_put(struct kvstore *s, uint64_t n, uint64_t v, uint64_t size)
{
	const struct block_meta meta = {.model = CGN_STR("m"), .tokens = (uint32_t)v};
	assert_true(cgn_ok(kvw_try_put(s, n, v, size, &meta)));
}

/* Return whether every byte of |b| is that of version |v| of |n|. */
CGN_UNUSED static bool kvw_is(const struct kvstore_block *b, uint64_t n, uint64_t v)
{
	struct iovec iov[2];
	size_t n_iov = 0;
	for (uint64_t at = 0; at < kvstore_block_size(b);) {
		(void)kvstore_block_iov(b, at, UINT64_MAX, iov, 2, &n_iov);
		for (size_t i = 0; i < n_iov; i++)
			for (size_t k = 0; k < iov[i].iov_len; k++)
				if (((const char *)iov[i].iov_base)[k] != kvw_byte(n, v, at++))
					return false;
	}
	return true;
}

CGN_UNUSED static bool kvw_has(struct kvstore *s, uint64_t n)
{
	struct block_info info;
	struct block_key k = kvw_key(n);
	return kvstore_lookup(s, &k, &info);
}

CGN_UNUSED static struct kvstore_stats kvw_stats(struct kvstore *s)
{
	struct kvstore_stats st;
	kvstore_stats(s, &st);
	return st;
}
