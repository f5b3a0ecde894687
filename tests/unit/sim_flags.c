/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of cgn-sim and its faults. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/replay/replay.h"
#include "sim/flags/flags.h"

#define PARSE(cfg, then, err, ...)                                                  \
	sim_flags_parse((int)CGN_COUNT(((const char *[]){"cgn-sim", __VA_ARGS__})), \
		(char **)(uintptr_t)(const char *[]){"cgn-sim", __VA_ARGS__, NULL}, (cfg), (then), (err))

static struct sim_cfg cfg;
static enum sim_flags_then then;
static struct cgn_err err;

static void assert_refused(cgn_rc rc, const char *part)
{
	assert_int_equal(rc.code, CGN_INVALID);
	if (strstr(err.msg, part) == NULL)
		fail_msg("\"%s\" lacks \"%s\"", err.msg, part);
}

static void presets_make_an_engine(void **state)
{
	(void)state;
	assert_true(cgn_ok(PARSE(&cfg, &then, &err, "--seed", "7")));
	assert_string_equal(cfg.listen, "127.0.0.1:8000");
	assert_int_equal(cfg.n_models, 1);
	assert_string_equal(cfg.models[0], "sim");
	assert_int_equal(cfg.seed, 7);
	assert_int_equal(cfg.block_tokens, 16);
	assert_true(cfg.time_scale > 0.999 && cfg.time_scale < 1.001);
	assert_int_equal(then, SIM_RUN);
}

static void values_come_behind_a_space_or_an_equals_sign(void **state)
{
	(void)state;
	assert_true(cgn_ok(PARSE(&cfg, &then, &err, "--model", "a", "--model=b/c=d", "--time-scale=0",
		"--kv-blocks", "10", "--chunk-per-write", "--fault=cut-after=3", "--fault", "http503@0.5")));
	assert_int_equal(cfg.n_models, 2);
	assert_string_equal(cfg.models[1], "b/c=d");
	assert_true(cfg.time_scale <= 0);
	assert_true(cfg.chunk_per_write);
	assert_int_equal(cfg.faults.n, 2);
	assert_int_equal(cfg.max_model_len, 160); /* Tokens that fit into the KV memory. */
	assert_true(cgn_ok(PARSE(&cfg, &then, &err, "--help")));
	assert_int_equal(then, SIM_HELP);
	assert_true(cgn_ok(PARSE(&cfg, &then, &err, "--version")));
	assert_int_equal(then, SIM_VERSION);
}

static void mistakes_are_explained(void **state)
{
	(void)state;
	assert_refused(PARSE(&cfg, &then, &err, "--kv-block", "1"), "did you mean --kv-blocks");
	assert_refused(PARSE(&cfg, &then, &err, "--zzzzzzzzz"), "unknown flag");
	assert_refused(PARSE(&cfg, &then, &err, "listen"), "unexpected argument \"listen\"");
	assert_refused(PARSE(&cfg, &then, &err, "--listen"), "needs a value");
	assert_refused(PARSE(&cfg, &then, &err, "--max-batch", "0"), "from 1 to");
	assert_refused(PARSE(&cfg, &then, &err, "--max-batch", "-1"), "from 1 to");
	assert_refused(PARSE(&cfg, &then, &err, "--max-batch", "1e9"), "from 1 to");
	assert_refused(PARSE(&cfg, &then, &err, "--time-scale", "nan"), "needs a number");
	assert_refused(PARSE(&cfg, &then, &err, "--time-scale", "1x"), "needs a number");
	assert_refused(PARSE(&cfg, &then, &err, "--chunk-per-write=yes"), "takes no value");
	assert_refused(PARSE(&cfg, &then, &err, "--fault", "explode"), "there are refuse, http");
	assert_refused(PARSE(&cfg, &then, &err, "--kv-blocks", "1", "--block-tokens", "1"),
		"less than a prompt and an answer");
	assert_refused(PARSE(&cfg, &then, &err, "--model", "\xff"), "UTF-8");
}

static void help_names_every_flag_and_fault(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	sim_flags_help(&b);
	const char *z = cgn_buf_z(&b);
#define FLAG(name, meta, type, field, preset, min, max, help) assert_non_null(strstr(z, "--" name " "));
#include "sim/flags/flags.def"
#undef FLAG
#define FAULT(id, name, arg, scope, help) assert_non_null(strstr(z, "  " name));
#include "sim/faults/faults.def"
#undef FAULT
	for (enum sim_dialect d = 0; d < SIM_DIALECT_COUNT; d++) {
		char line[200];
		(void)snprintf(line, sizeof line, "  %-18s%s\n", sim_dialect_name(d), sim_dialect_help(d));
		assert_non_null(strstr(z, line));
	}
	assert_non_null(strstr(z, " [127.0.0.1:8000]\n")); /* The default of --listen. */
	assert_non_null(strstr(z, "\nfaults: KIND[=ARG]"));
	cgn_buf_fini(&b);
	/* A format that does not exist is refused with those that do. */
	char known[200] = "needs one of ";
	for (enum sim_dialect d = 0; d < SIM_DIALECT_COUNT; d++) {
		size_t n = strlen(known);
		(void)snprintf(known + n, sizeof known - n, "%s%s", d > 0 ? ", " : "", sim_dialect_name(d));
	}
	assert_refused(PARSE(&cfg, &then, &err, "--kv-events-format", "nope"), known);
}

static void kv_events_are_set_up(void **state)
{
	(void)state;
	assert_true(cgn_ok(PARSE(&cfg, &then, &err, "--seed", "7")));
	assert_false(sim_has_events(&cfg) || sim_keeps_contents(&cfg));
	assert_true(cgn_ok(PARSE(&cfg, &then, &err, "--kv-digests")));
	assert_true(sim_keeps_contents(&cfg) && !sim_has_events(&cfg));
	assert_true(cgn_ok(PARSE(&cfg, &then, &err, "--kv-events", "tcp://*:5557", "--kv-events-format",
		"sglang-map", "--cpu-blocks", "7", "--disk-blocks=9", "--cpu-restore-us", "2.5",
		"--kv-groups", "2", "--kv-events-buffer", "3")));
	assert_true(sim_has_events(&cfg) && sim_keeps_contents(&cfg));
	assert_int_equal(cfg.dialect, SIM_DIALECT_SGLANG_MAP);
	assert_int_equal(cfg.lower_blocks[ENGINEMODEL_TIER_CPU], 7);
	assert_int_equal(cfg.lower_blocks[ENGINEMODEL_TIER_STORAGE], 9);
	assert_true(
		cfg.restore_us[ENGINEMODEL_TIER_CPU] > 2.4 && cfg.restore_us[ENGINEMODEL_TIER_STORAGE] > 199);
	assert_refused(PARSE(&cfg, &then, &err, "--kv-events-format", "trt"),
		"vllm, vllm-array, vllm-map, sglang, sglang-old, sglang-map");
	assert_refused(PARSE(&cfg, &then, &err, "--kv-events-hash", "sha"), "int or bytes");
	assert_refused(PARSE(&cfg, &then, &err, "--kv-events-replay", "tcp://*:1"), "needs --kv-events");
	assert_refused(PARSE(&cfg, &then, &err, "--kv-events", "tcp://*:1", "--kv-events-format", "sglang",
			       "--kv-events-hash", "bytes"),
		"vLLM's");
	assert_refused(PARSE(&cfg, &then, &err, "--kv-events-buffer", "0"), "from 1 to");
	assert_refused(PARSE(&cfg, &then, &err, "--kv-groups", "17"), "from 1 to 16");
}

static struct sim_fault fault_of(const char *text)
{
	struct sim_fault f = {0};
	if (!cgn_ok(sim_fault_parse(cgn_str_of(text), &f, &err)))
		fail_msg("%s: %s", text, err.msg);
	return f;
}

static void faults_print_as_they_are_read(void **state)
{
	(void)state;
	static const char *const texts[] = {"refuse", "http500", "http503@0.25", "cut-after=7@every=3",
		"die-after=0@after=10", "hang", "stall-after=1@0", "truncated-chunk@1", "uncached@every=3",
		"slow-start=1500ms", "kv-lose@nth=3", "kv-restart@0.5", "kv-deaf"};
	for (size_t i = 0; i < CGN_COUNT(texts); i++) {
		struct sim_fault f = fault_of(texts[i]);
		struct cgn_buf b = {0};
		sim_fault_print(&f, &b);
		assert_string_equal(cgn_buf_z(&b), texts[i]);
		cgn_buf_fini(&b);
	}
	assert_int_equal(fault_of("http:429").arg, 429);
	assert_int_equal(fault_of("slow-start:2s").arg, 2 * CGN_SEC);
	assert_int_equal(fault_of("slow-start=3").arg, 3 * CGN_SEC);
}

static void bad_faults_are_refused(void **state)
{
	(void)state;
	static const char *const texts[] = {"", "@", "http", "http200", "http9999", "httpx", "cut-after",
		"cut-after=", "cut-after=-1", "refuse=1", "hang@", "hang@2", "hang@-0.5", "hang@every=0",
		"hang@every", "hang@often=3", "slow-start", "slow-start=5h",
		"slow-start=99999999999999999999s", "hang@nan", "cut-after=99999999999"};
	for (size_t i = 0; i < CGN_COUNT(texts); i++) {
		struct sim_fault f;
		if (cgn_ok(sim_fault_parse(cgn_str_of(texts[i]), &f, &err)))
			fail_msg("\"%s\" was accepted", texts[i]);
		assert_true(strlen(err.msg) > 10);
	}
}

static unsigned count_strikes(const char *text, unsigned requests)
{
	struct sim_faults f = {.list = {fault_of(text)}, .n = 1, .rng = 1};
	struct sim_verdict v;
	unsigned n = 0;
	for (unsigned i = 0; i < requests; i++) {
		sim_faults_judge(&f, &v);
		n += v.hang;
	}
	return n;
}

static void faults_strike_as_often_as_asked(void **state)
{
	(void)state;
	assert_int_equal(count_strikes("hang", 100), 100);
	assert_int_equal(count_strikes("hang@every=7", 100), 14);
	assert_int_equal(count_strikes("hang@after=90", 100), 10);
	assert_int_equal(count_strikes("hang@nth=90", 100), 1);
	assert_int_equal(count_strikes("hang@nth=101", 100), 0);
	assert_int_equal(count_strikes("hang@0", 1000), 0);
	assert_int_equal(count_strikes("hang@1", 1000), 1000);
	unsigned n = count_strikes("hang@0.25", 10000);
	assert_true(n > 2200 && n < 2800);
	assert_int_equal(n, count_strikes("hang@0.25", 10000)); /* Seeded: the same again. */
}

static void verdicts_combine(void **state)
{
	(void)state;
	struct sim_faults f = {.list = {fault_of("cut-after=5"), fault_of("http500@after=1"),
				       fault_of("slow-start=1s")},
		.n = 3};
	struct sim_verdict v;
	sim_faults_judge(&f, &v);
	assert_true(v.cut_after == 5 && v.status == 0 && v.die_after == SIM_NEVER && !v.refuse);
	sim_faults_judge(&f, &v);
	assert_int_equal(v.status, 500);
	assert_true(sim_faults_slow_start(&f) == CGN_SEC);
}

static void batches_are_judged_apart(void **state)
{
	(void)state;
	struct sim_faults f = {.list = {fault_of("kv-lose@nth=2"), fault_of("hang@nth=2"),
				       fault_of("kv-alien"), fault_of("kv-deaf@every=2")},
		.n = 4};
	struct sim_verdict v;
	struct sim_batch_verdict b;
	sim_faults_judge_batch(&f, &b);
	assert_true(b.alien && !b.lose && !b.drop && !b.twice && !b.swap && !b.garbage && !b.silent &&
		!b.restart);
	sim_faults_judge(&f, &v);
	assert_false(v.hang);
	sim_faults_judge_batch(&f, &b);
	assert_true(b.lose);
	sim_faults_judge(&f, &v);
	assert_true(v.hang);
	assert_false(sim_faults_ignore_replay(&f));
	assert_true(sim_faults_ignore_replay(&f));
}

/* The engine of a replay has the same settings. */
static void a_replay_has_the_same_engine(void **state)
{
	(void)state;
	const struct replay_cfg *r = &replay_defaults;
	assert_true(cgn_ok(PARSE(&cfg, &then, &err, "--seed", "1")));
	assert_true(cfg.prefill_tokens_per_s <= r->prefill_tokens_per_s &&
		cfg.prefill_tokens_per_s >= r->prefill_tokens_per_s);
	assert_true((cgn_nsec)(cfg.decode_ms * 1e6) == r->decode);
	assert_true(cfg.batch_effect <= r->batch_effect && cfg.batch_effect >= r->batch_effect);
	assert_int_equal(cfg.max_batch, r->max_batch);
	assert_int_equal(cfg.step_tokens, r->step_tokens);
	assert_int_equal(cfg.max_queue, r->max_queue);
}

/* The pace of a profile stands in for presets, and never for flags that are given, on either side of it. */
static void a_profile_is_a_set_of_presets(void **state)
{
	(void)state;
	const struct enginemodel_pace pace =
		enginemodel_profile_pace(enginemodel_profile_find(CGN_STR("h100-llama-8b")));
	assert_true(cgn_ok(PARSE(&cfg, &then, &err, "--model", "m", "--kv-read-ns", "1", "--profile",
		"h100-llama-8b", "--decode-ms", "3", "--block-tokens", "32")));
	assert_int_equal(cfg.n_models, 1);
	assert_true(cfg.decode_ms >= 3 && cfg.decode_ms <= 3);
	assert_true(cfg.terms.context_ns >= 1 && cfg.terms.context_ns <= 1);
	assert_true(cfg.terms.overlaps && cfg.terms.pair_ns >= pace.terms.pair_ns);
	assert_true(cfg.prefill_tokens_per_s >= pace.prefill_tokens_per_s);
	assert_int_equal(cfg.kv_blocks, pace.kv_tokens / 32);
	assert_true(cgn_ok(PARSE(&cfg, &then, &err, "--profile", "h100-llama-8b", "--kv-blocks", "7")));
	assert_int_equal(cfg.kv_blocks, 7);
	assert_false(cgn_ok(PARSE(&cfg, &then, &err, "--profile", "h100")));
	assert_non_null(strstr(err.msg, "h100-llama-8b"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(presets_make_an_engine),
		cmocka_unit_test(values_come_behind_a_space_or_an_equals_sign),
		cmocka_unit_test(mistakes_are_explained),
		cmocka_unit_test(help_names_every_flag_and_fault),
		cmocka_unit_test(faults_print_as_they_are_read),
		cmocka_unit_test(bad_faults_are_refused),
		cmocka_unit_test(faults_strike_as_often_as_asked),
		cmocka_unit_test(verdicts_combine),
		cmocka_unit_test(kv_events_are_set_up),
		cmocka_unit_test(batches_are_judged_apart),
		cmocka_unit_test(a_replay_has_the_same_engine),
		cmocka_unit_test(a_profile_is_a_set_of_presets),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
