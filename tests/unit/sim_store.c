/* SPDX-License-Identifier: Apache-2.0 */
/* A simulator's use of the block store: values identify their block wherever they are cut; chains know the
 * full digests of their blocks; loaded blocks follow the cached ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/enginemodel/enginemodel.h"
#include "sim/store/store.h"
#include "sim/text/tokens.h"

#define BLOCK 4

static void a_value_is_its_digests(void **state)
{
	(void)state;
	static uint8_t whole[10000], parts[10000], other[64];
	struct digest a = digest_of(CGN_STR("a")), b = digest_of(CGN_STR("b"));
	sim_store_value(&a, 0, whole, sizeof whole);
	for (size_t at = 0; at < sizeof parts; at += 1000)
		sim_store_value(&a, at, parts + at, 1000);
	assert_memory_equal(whole, parts, sizeof whole);
	sim_store_value(&b, 0, other, sizeof other);
	assert_memory_not_equal(whole, other, sizeof other);
	assert_memory_not_equal(whole, whole + 64, 64); /* A piece in the wrong place is noticed. */
}

/* Cut the value in two at each interesting place, with each byte wrong in turn. */
static void a_wrong_byte_is_noticed(void **state)
{
	(void)state;
	static uint8_t v[9001];
	static const size_t cuts[] = {0, 1, 7, 8, 4095, 4096, 4097, 8192, 9000, 9001};
	struct digest a = digest_of(CGN_STR("a")), b = digest_of(CGN_STR("b"));
	sim_store_value(&a, 0, v, sizeof v);
	for (size_t i = 0; i < CGN_COUNT(cuts); i++) {
		struct iovec iov[2] = {{v, cuts[i]}, {v + cuts[i], sizeof v - cuts[i]}};
		assert_true(sim_store_value_matches(&a, iov, 2));
		assert_false(sim_store_value_matches(&b, iov, 2));
		for (size_t at = 0; at < sizeof v; at += 450) {
			v[at] ^= 1;
			assert_false(sim_store_value_matches(&a, iov, 2));
			v[at] ^= 1;
		}
	}
}

static void chain_of(struct sim_chain *c, uint32_t tokens)
{
	sim_chain_init(c,
		&(struct sim_chain_cfg){.model = CGN_STR("m"),
			.salt = CGN_STR("s"),
			.block_tokens = BLOCK,
			.max_tokens = 4096,
			.keep = true});
	for (uint32_t i = 0; i < tokens; i++)
		sim_chain_add(c, i + 1000);
}

static void a_chain_knows_its_blocks_in_full(void **state)
{
	(void)state;
	struct sim_chain c, copy;
	chain_of(&c, 42);
	sim_chain_copy(&copy, &c);
	sim_chain_add(&copy, 7);
	sim_chain_add(&copy, 8); /* Adds a block. */
	struct digest d = digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR("s"));
	assert_int_equal(c.n, 10);
	assert_int_equal(copy.n, 11);
	for (uint32_t i = 0; i < copy.n; i++) {
		d = digest_chain_next(&d,
			(struct cgn_str){(const char *)(copy.contents->tokens + i * BLOCK),
				BLOCK * sizeof(uint32_t)});
		assert_memory_equal(&copy.contents->names[i], &d, sizeof d);
		assert_true(copy.contents->digests[i] == digest_short(&d));
		assert_true(i == 10 || memcmp(&c.contents->names[i], &d, sizeof d) == 0);
	}
	sim_chain_fini(&c);
	sim_chain_fini(&copy);
}

static uint32_t cached;
static cgn_nsec run_job(struct enginemodel *m, const struct sim_chain *c, cgn_nsec now)
{
	struct enginemodel_job *job = NULL;
	struct enginemodel_orders o;
	cgn_nsec first = 0;
	assert_true(cgn_ok(enginemodel_submit(m,
		&(struct enginemodel_job_spec){.prompt_tokens = c->n * BLOCK,
			.answer_tokens = 1,
			.hashes = c->hashes,
			.n_hashes = c->n},
		&job)));
	for (cgn_nsec at = now;; at = o.wake_at) {
		enginemodel_step(m, at, &o);
		if (o.n_progress > 0) {
			cached = o.progress[0].cached;
			first = at;
		}
		if (o.wake_at == 0)
			return first - now;
	}
}

static const struct enginemodel_cfg small = {.prefill_tokens_per_s = 1000,
	.decode = 10 * CGN_MSEC,
	.max_batch = 4,
	.step_tokens = 64,
	.max_queue = 10,
	.kv_blocks = 12,
	.block_tokens = BLOCK,
	.notes = ENGINEMODEL_NOTE_DIGEST};

static void what_is_loaded_goes_behind_what_is_there(void **state)
{
	(void)state;
	struct enginemodel *m = NULL;
	struct sim_chain a, b;
	chain_of(&a, 40);
	sim_chain_init(&b,
		&(struct sim_chain_cfg){.model = CGN_STR("other"),
			.block_tokens = BLOCK,
			.max_tokens = 4096,
			.keep = true});
	for (uint32_t i = 0; i < 24; i++)
		sim_chain_add(&b, i);
	assert_true(cgn_ok(enginemodel_new(&small, &m)));
	/* The older blocks. */
	assert_int_equal(enginemodel_fill(m, &(struct enginemodel_run){a.hashes, a.contents, 0, 6}), 6);
	assert_int_equal(enginemodel_fill(m, &(struct enginemodel_run){b.hashes, b.contents, 0, 6}), 6);
	/* Four more blocks of a evict the younger blocks of b, not the beginning of a. */
	assert_int_equal(enginemodel_fill(m, &(struct enginemodel_run){a.hashes, a.contents, 6, 4}), 4);
	assert_int_equal(enginemodel_memory_match(enginemodel_memory_of(m), a.hashes, a.n).found, 10);
	assert_int_equal(enginemodel_memory_match(enginemodel_memory_of(m), b.hashes, b.n).found, 2);
	assert_true(enginemodel_sound(m));
	cgn_nsec computed = run_job(m, &a, 1000); /* The last block is computed for its logits. */
	assert_int_equal(cached, 36);
	enginemodel_delay(m, 5 * CGN_MSEC);
	assert_true(run_job(m, &a, CGN_SEC) == computed + 5 * CGN_MSEC);
	assert_true(run_job(m, &a, 2 * CGN_SEC) == computed); /* The delay applies once. */
	sim_chain_fini(&a);
	sim_chain_fini(&b);
	enginemodel_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_value_is_its_digests),
		cmocka_unit_test(a_wrong_byte_is_noticed),
		cmocka_unit_test(a_chain_knows_its_blocks_in_full),
		cmocka_unit_test(what_is_loaded_goes_behind_what_is_there),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
