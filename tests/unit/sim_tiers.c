/* SPDX-License-Identifier: Apache-2.0 */
/* KV memory in tiers: the listeners' view always equals the contents; restored blocks save computing and cost
 * time; reset and fill. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "sim/server/fill.h"

#define BLOCK 4

/* A listener that records every change. */
struct entry {
	uint64_t hash, digest;
};
struct mirror {
	struct entry at[ENGINEMODEL_TIER_COUNT][512];
	unsigned n[ENGINEMODEL_TIER_COUNT];
	unsigned stored, moved, removed, cleared;
	bool described; /* Moved blocks come with a note. */
};
static struct mirror seen;

static struct entry *entry_of(enum enginemodel_tier t, uint64_t hash)
{
	for (unsigned i = 0; i < seen.n[t]; i++) {
		if (seen.at[t][i].hash == hash)
			return &seen.at[t][i];
	}
	return NULL;
}

static void entry_put(enum enginemodel_tier t, uint64_t hash, uint64_t digest)
{
	assert_null(entry_of(t, hash));
	assert_true(seen.n[t] < CGN_COUNT(seen.at[t]));
	seen.at[t][seen.n[t]++] = (struct entry){hash, digest};
}

static void on_stored(void *arg, const struct enginemodel_run *run)
{
	assert_ptr_equal(arg, &seen);
	assert_true(run->n > 0);
	for (uint32_t i = run->from; i < run->from + run->n; i++)
		entry_put(ENGINEMODEL_TIER_GPU, run->hashes[i], run->contents->digests[i]);
	seen.stored += run->n;
}

static void on_moved(void *arg, enum enginemodel_tier to, uint64_t hash, const struct enginemodel_note *note)
{
	assert_ptr_equal(arg, &seen);
	const struct entry *known = NULL; /* The event comes before the block leaves the upper tier. */
	for (enum enginemodel_tier t = ENGINEMODEL_TIER_GPU; t < to && known == NULL; t++)
		known = entry_of(t, hash);
	assert_non_null(known);
	assert_int_equal(note != NULL, seen.described);
	if (note != NULL)
		assert_true(note->digest == known->digest);
	entry_put(to, hash, known->digest);
	seen.moved++;
}

static void on_removed(void *arg, enum enginemodel_tier from, uint64_t hash)
{
	assert_ptr_equal(arg, &seen);
	struct entry *e = entry_of(from, hash);
	if (e == NULL)
		fail_msg("removed from %s what was not there", enginemodel_tier_name(from));
	else
		*e = seen.at[from][--seen.n[from]];
	seen.removed++;
}

static void on_cleared(void *arg)
{
	assert_ptr_equal(arg, &seen);
	memset(seen.n, 0, sizeof seen.n);
	seen.cleared++;
}

static void has_digest(void *arg, uint64_t digest)
{
	enum enginemodel_tier t = *(const enum enginemodel_tier *)arg;
	for (unsigned i = 0; i < seen.n[t]; i++) {
		if (seen.at[t][i].digest == digest)
			return;
	}
	fail_msg("nobody was told of a block in %s", enginemodel_tier_name(t));
}

static void assert_agree(struct enginemodel *m)
{
	assert_true(enginemodel_sound(m));
	for (enum enginemodel_tier t = 0; t < ENGINEMODEL_TIER_COUNT; t++) {
		assert_int_equal(enginemodel_memory_known(enginemodel_memory_of(m), t), seen.n[t]);
		enginemodel_memory_digests(enginemodel_memory_of(m), t, has_digest, &t);
	}
}

static const struct enginemodel_cfg small = {
	.prefill_tokens_per_s = 1000,
	.decode = 10 * CGN_MSEC,
	.max_batch = 4,
	.step_tokens = 64,
	.max_queue = 100,
	.kv_blocks = 12,
	.block_tokens = BLOCK,
	.lower_blocks = {0, 16, 24},
	.restore = {0, 2 * CGN_MSEC, 7 * CGN_MSEC},
	.notes = ENGINEMODEL_NOTE_DIGEST,
	.listener = {on_stored, on_moved, on_removed, on_cleared, &seen},
};

static struct enginemodel *model_of(const struct enginemodel_cfg *cfg)
{
	struct enginemodel *m = NULL;
	seen = (struct mirror){.described = cfg->notes == ENGINEMODEL_NOTE_FULL};
	assert_true(cgn_ok(enginemodel_new(cfg, &m)));
	return m;
}

static void chain_of(struct sim_chain *c, uint64_t lineage, uint32_t tokens, const char *salt)
{
	sim_chain_init(c,
		&(struct sim_chain_cfg){.model = CGN_STR("m"),
			.salt = cgn_str_of(salt),
			.block_tokens = BLOCK,
			.max_tokens = 4096,
			.keep = true});
	for (uint32_t i = 0; i < tokens; i++)
		sim_chain_add(c, (uint32_t)(mix64(lineage * 4096 + i) & 0xffffff));
}

static uint32_t cached; /* Cached tokens of the job that made progress last. */

static cgn_rc submit_job(struct enginemodel *m, uint64_t lineage, uint32_t prompt, uint32_t answer,
	struct enginemodel_job **job)
{
	struct sim_chain c;
	chain_of(&c, lineage, prompt + answer, lineage % 3 == 0 ? "pepper" : "");
	const struct enginemodel_job_spec spec = {prompt, answer, c.hashes, c.n, job, &c.contents};
	cgn_rc rc = enginemodel_submit(m, &spec, job);
	assert_true(cgn_ok(rc) == (c.contents == NULL));
	sim_chain_fini(&c);
	return rc;
}

static cgn_nsec step_model(struct enginemodel *m, cgn_nsec now)
{
	struct enginemodel_orders o;
	enginemodel_step(m, now, &o);
	for (size_t i = 0; i < o.n_progress; i++) {
		struct enginemodel_job **job = o.progress[i].user;
		cached = o.progress[i].cached;
		if (o.progress[i].finished)
			*job = NULL;
	}
	return o.wake_at;
}

static cgn_nsec run_until_idle(struct enginemodel *m, cgn_nsec now)
{
	for (unsigned i = 0; i < 10000; i++) {
		cgn_nsec at = step_model(m, now);
		assert_agree(m);
		if (at == 0)
			return now;
		now = at;
	}
	fail_msg("the device never idles");
	return 0;
}

static cgn_nsec ask_prompt(struct enginemodel *m, cgn_nsec now, uint64_t lineage, uint32_t prompt)
{
	struct enginemodel_job *job = NULL;
	assert_true(cgn_ok(submit_job(m, lineage, prompt, 1, &job)));
	now = run_until_idle(m, now);
	assert_null(job);
	return now;
}

static void blocks_go_down_and_come_back(void **state)
{
	(void)state;
	struct enginemodel *m = model_of(&small);
	cgn_nsec now = ask_prompt(m, 0, 1, 32);
	assert_int_equal(seen.n[ENGINEMODEL_TIER_GPU], 8);
	now = ask_prompt(m, now, 2, 32);
	assert_true(seen.n[ENGINEMODEL_TIER_CPU] > 0);
	cgn_nsec start = now;
	/* Beginnings are evicted last: the blocks on the GPU and in lower tiers form a prefix of seven
	 * blocks. */
	now = ask_prompt(m, now, 1, 32);
	assert_int_equal(cached, 28);
	struct enginemodel_stats s = enginemodel_stats(m);
	assert_true(s.restored[ENGINEMODEL_TIER_CPU] > 0);
	assert_int_equal((now - start) / CGN_MSEC, 4 + 2 * s.restored[ENGINEMODEL_TIER_CPU]);
	enginemodel_free(&m);
}

static void storage_takes_what_the_cpu_gives_up(void **state)
{
	(void)state;
	struct enginemodel *m = model_of(&small);
	cgn_nsec now = 0;
	for (uint64_t lineage = 1; lineage <= 4; lineage++)
		now = ask_prompt(m, now, lineage, 32);
	assert_true(seen.n[ENGINEMODEL_TIER_STORAGE] > 0);
	assert_int_equal(seen.n[ENGINEMODEL_TIER_CPU], 16);
	now = ask_prompt(m, now, 1, 32);
	assert_int_equal(cached, 28);
	assert_true(enginemodel_stats(m).restored[ENGINEMODEL_TIER_STORAGE] > 0);
	for (uint64_t lineage = 5; lineage <= 20; lineage++)
		now = ask_prompt(m, now, lineage, 32);
	(void)ask_prompt(m, now, 2, 32);
	assert_int_equal(cached, 0); /* The last tier evicts too. */
	enginemodel_free(&m);
}

static void storage_alone_is_enough(void **state)
{
	(void)state;
	struct enginemodel_cfg cfg = small;
	cfg.lower_blocks[ENGINEMODEL_TIER_CPU] = 0;
	struct enginemodel *m = model_of(&cfg);
	cgn_nsec now = ask_prompt(m, 0, 1, 32);
	now = ask_prompt(m, now, 2, 32);
	(void)ask_prompt(m, now, 1, 32);
	assert_int_equal(cached, 28);
	assert_true(enginemodel_stats(m).restored[ENGINEMODEL_TIER_STORAGE] > 0);
	assert_int_equal(seen.n[ENGINEMODEL_TIER_CPU], 0);
	enginemodel_free(&m);
}

static void run_storm(const struct enginemodel_cfg *cfg, uint64_t seed)
{
	static struct enginemodel_job *jobs[16];
	struct enginemodel *m = model_of(cfg);
	uint64_t rng = seed;
	cgn_nsec now = 0;
	memset(jobs, 0, sizeof jobs);
	for (unsigned i = 0; i < 3000; i++) {
		rng = mix64(rng + 1);
		struct enginemodel_job **it = &jobs[rng % CGN_COUNT(jobs)];
		if (*it == NULL)
			(void)!submit_job(m, rng >> 8 & 15, 1 + (uint32_t)(rng >> 16 & 31),
				1 + (uint32_t)(rng >> 24 & 15), it)
				.code;
		else if ((rng >> 32 & 15) == 0)
			enginemodel_abort(m, it);
		if ((rng >> 40 & 255) == 0)
			(void)enginemodel_reset(m, (rng >> 50 & 1) != 0, false);
		cgn_nsec at = step_model(m, now);
		now = at != 0 ? at : now;
		assert_agree(m);
	}
	(void)run_until_idle(m, now);
	struct enginemodel_stats s = enginemodel_stats(m);
	assert_true(s.finished > 100 && s.aborted > 0 && s.restored[ENGINEMODEL_TIER_CPU] > 10 &&
		s.restored[ENGINEMODEL_TIER_STORAGE] > 10);
	assert_true(seen.cleared > 0 && seen.moved > 100 && seen.removed > seen.moved);
	enginemodel_free(&m);
}

static void whatever_happens_is_told(void **state)
{
	(void)state;
	struct enginemodel_cfg full = small;
	full.notes = ENGINEMODEL_NOTE_FULL;
	for (uint64_t seed = 1; seed <= 3; seed++) {
		run_storm(&small, seed);
		run_storm(&full, seed);
	}
}

static void a_tiny_tier_below_can_be_all_in_use(void **state)
{
	(void)state;
	struct enginemodel_cfg cfg = small;
	cfg.lower_blocks[ENGINEMODEL_TIER_CPU] = 2;
	cfg.lower_blocks[ENGINEMODEL_TIER_STORAGE] = 0;
	struct enginemodel *m = model_of(&cfg);
	cgn_nsec now = 0;
	/* Each needs more than half of the GPU: blocks are restored while others are evicted. */
	for (unsigned i = 0; i < 50; i++)
		now = ask_prompt(m, now, i % 3, 36);
	enginemodel_free(&m);
}

static void reset_spares_what_runs_unless_told(void **state)
{
	(void)state;
	struct enginemodel *m = model_of(&small);
	struct enginemodel_job *a = NULL, *b = NULL;
	assert_true(cgn_ok(submit_job(m, 1, 12, 10, &a)));
	assert_true(cgn_ok(submit_job(m, 2, 12, 10, &b)));
	cgn_nsec now = step_model(m, 0);
	now = step_model(m, now);
	assert_true(seen.n[ENGINEMODEL_TIER_GPU] > 0);
	assert_false(enginemodel_reset(m, false, false));
	assert_int_equal(seen.cleared, 0);
	assert_true(enginemodel_reset(m, true, false));
	assert_int_equal(seen.cleared, 1);
	assert_agree(m);
	assert_int_equal(enginemodel_stats(m).running, 0);
	now = run_until_idle(m, now);
	assert_true(a == NULL && b == NULL); /* The jobs started over and ended. */
	assert_true(seen.n[ENGINEMODEL_TIER_GPU] > 0);
	assert_true(enginemodel_reset(m, false, true));
	assert_int_equal(seen.cleared, 1); /* The reset was silent. */
	assert_int_equal(enginemodel_stats(m).kv_known, 0);
	(void)now;
	enginemodel_free(&m);
}

static void fill_is_as_if_computed(void **state)
{
	(void)state;
	struct enginemodel *m = model_of(&small);
	struct sim_chain c;
	chain_of(&c, 7, 32, "");
	assert_int_equal(enginemodel_fill(m, &(struct enginemodel_run){c.hashes, c.contents, 0, c.n}), 8);
	assert_agree(m);
	assert_int_equal(seen.stored, 8);
	/* All blocks are cached already. */
	assert_int_equal(enginemodel_fill(m, &(struct enginemodel_run){c.hashes, c.contents, 0, c.n}), 8);
	assert_agree(m);
	assert_int_equal(seen.stored, 8);
	sim_chain_fini(&c);
	(void)ask_prompt(m, 0, 7, 32);
	assert_int_equal(cached, 28);
	enginemodel_free(&m);
}

static void count_one(void *arg, uint64_t digest)
{
	uint64_t *sum = arg;
	*sum += mix64(digest); /* In any order. */
}

static uint64_t filled_chain(uint64_t seed, unsigned rank, uint32_t vocab)
{
	static const struct sim_cfg cfg = {.models = {"m"},
		.n_models = 1,
		.kv_blocks = 12,
		.block_tokens = BLOCK,
		.kv_digests = true};
	struct sim_fill f = {.seed = seed, .blocks = 10, .chain = 4, .rank = UINT32_MAX};
	struct enginemodel *m = model_of(&small);
	uint64_t sum = 0;
	while (!sim_fill_step(&f, &cfg, rank, vocab, m))
		;
	assert_int_equal(f.made, 10);
	assert_agree(m);
	assert_int_equal(seen.n[ENGINEMODEL_TIER_GPU], 10);
	enginemodel_memory_digests(enginemodel_memory_of(m), ENGINEMODEL_TIER_GPU, count_one, &sum);
	enginemodel_free(&m);
	return sum;
}

static void fill_is_a_function_of_seed_and_rank(void **state)
{
	(void)state;
	assert_true(filled_chain(1, 0, 0) == filled_chain(1, 0, 0));
	assert_true(filled_chain(1, 0, 0) != filled_chain(2, 0, 0));
	assert_true(filled_chain(1, 0, 0) != filled_chain(1, 1, 0));
	assert_true(filled_chain(1, 0, 0) != filled_chain(1, 0, 1000));
}

static void fill_spares_what_runs(void **state)
{
	(void)state;
	static const struct sim_cfg cfg = {.models = {"m"},
		.n_models = 1,
		.kv_blocks = 12,
		.block_tokens = BLOCK,
		.kv_digests = true};
	struct sim_fill f = {.blocks = 12, .chain = 4, .rank = UINT32_MAX};
	struct enginemodel *m = model_of(&small);
	struct enginemodel_job *job = NULL;
	assert_true(cgn_ok(submit_job(m, 1, 12, 10, &job)));
	(void)step_model(m, step_model(m, 0));
	uint32_t used = enginemodel_stats(m).kv_used;
	assert_true(sim_fill_step(&f, &cfg, 0, 0, m));
	assert_int_equal(f.made, 12 - used);
	assert_agree(m);
	enginemodel_free(&m);
}

static void fills_are_read(void **state)
{
	(void)state;
	static const struct sim_cfg cfg = {.models = {"m"},
		.n_models = 1,
		.kv_blocks = 12,
		.block_tokens = BLOCK};
	static const char *const bad[] = {"", "[]", "{}", "{\"blocks\":0}", "{\"blocks\":13}",
		"{\"blocks\":-1}", "{\"blocks\":1,\"chain\":0}", "{\"blocks\":1,\"chain\":4097}"};
	struct sim_refusal no;
	struct sim_fill f;
	assert_true(sim_fill_parse(&cfg, CGN_STR("{\"blocks\":12,\"seed\":7,\"chain\":3}"), &f, &no));
	assert_true(f.blocks == 12 && f.seed == 7 && f.chain == 3);
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		assert_false(sim_fill_parse(&cfg, cgn_str_of(bad[i]), &f, &no));
		assert_int_equal(no.status, 400);
	}
}

static void described_blocks_can_be_told_again(void **state)
{
	(void)state;
	struct sim_chain c, copy;
	sim_chain_init(&c,
		&(struct sim_chain_cfg){.model = CGN_STR("m"),
			.salt = CGN_STR("salt"),
			.model_index = 3,
			.block_tokens = BLOCK,
			.max_tokens = 1000,
			.keep = true});
	sim_chain_image(&c, CGN_STR("picture"));
	for (uint32_t i = 0; i < 6; i++)
		sim_chain_add(&c, i);
	sim_chain_copy(&copy, &c);
	for (uint32_t i = 6; i < 8; i++) {
		sim_chain_add(&c, i);
		sim_chain_add(&copy, i);
	}
	const struct enginemodel_contents *a = c.contents, *b = copy.contents;
	assert_int_equal(c.n, 66);
	assert_int_equal(b->model, 3);
	assert_true(cgn_str_is(enginemodel_salt_str(b->salt), "salt"));
	assert_int_equal(b->n_images, 1);
	assert_int_equal(b->images[0].at, 0);
	assert_memory_equal(a->digests, b->digests, 66 * sizeof *a->digests);
	assert_memory_equal(a->tokens, b->tokens, 264 * sizeof *a->tokens);
	assert_int_equal(a->tokens[263], 7);
	/* The product's chain, step by step. */
	struct digest d = digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR("salt"));
	for (uint32_t i = 0; i < 66; i++) {
		d = digest_chain_next(&d,
			(struct cgn_str){(const char *)(a->tokens + (size_t)i * BLOCK), BLOCK * 4});
		assert_true(a->digests[i] == digest_short(&d));
	}
	sim_chain_fini(&c);
	sim_chain_fini(&copy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_go_down_and_come_back),
		cmocka_unit_test(storage_takes_what_the_cpu_gives_up),
		cmocka_unit_test(storage_alone_is_enough),
		cmocka_unit_test(whatever_happens_is_told),
		cmocka_unit_test(a_tiny_tier_below_can_be_all_in_use),
		cmocka_unit_test(reset_spares_what_runs_unless_told),
		cmocka_unit_test(fill_is_as_if_computed),
		cmocka_unit_test(fill_is_a_function_of_seed_and_rank),
		cmocka_unit_test(fill_spares_what_runs),
		cmocka_unit_test(fills_are_read),
		cmocka_unit_test(described_blocks_can_be_told_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
