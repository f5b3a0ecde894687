/* SPDX-License-Identifier: Apache-2.0 */
/* bench evict: the share of a trace's prompts that one cache finds, for each policy and size. */
#include <inttypes.h>
#include <stdlib.h>

#include "bench/common/report.h"
#include "bench/common/traces.h"
#include "io/os/loop/loop.h"
#include "joint/ctl/line/progress.h"
#include "lab/trial/trial.h"

#define MAX_SIZES 12

struct one {
	struct trial_result result;
	double ns; /* Wall time for each block of a prompt. */
};

struct bench {
	const char *name; /* Name of the trace. */
	struct trace trace;
	struct trace_found ideal;
	uint64_t blocks[MAX_SIZES];
	size_t n_sizes;
	enum trial_policy policies[TRIAL_POLICIES];
	size_t n_policies;
	uint32_t shards;
	bool begin_first;
	struct one cases[TRIAL_POLICIES][MAX_SIZES];
};

static CGN_RC run_one(struct bench *b, size_t policy, size_t size, struct cgn_err *err)
{
	struct one *o = &b->cases[policy][size];
	enum trial_policy p = b->policies[policy];
	struct trial_cfg cfg = {.policy = p,
		.blocks = (uint32_t)b->blocks[size],
		.shards = p == TRIAL_OFFLINE ? 1 : b->shards,
		.begin_first = b->begin_first};
	double part = (double)(policy * b->n_sizes + size) / (double)(b->n_policies * b->n_sizes);
	ctl_progress("%s %3.0f %% %s, %" PRIu64 " blocks", ctl_bar(part).text, part * 100, trial_text(p),
		b->blocks[size]);
	cgn_nsec began = cgn_clock_now();
	CGN_TRY(trial_run(&b->trace, &cfg, &o->result, err));
	o->ns = (double)cgn_since(cgn_clock_now(), began) / (double)b->trace.n_ids;
	return CGN_OK;
}

/* ---- report ---- */

static void put_case(const struct bench *b, size_t policy, size_t size, struct json_out *o)
{
	const struct one *c = &b->cases[policy][size];
	json_open(o, '{');
	json_key_z(o, "policy", trial_text(b->policies[policy]));
	json_key_u64(o, "blocks", b->blocks[size]);
	json_key_f64(o, "hit_ratio", trial_ratio(&c->result));
	json_key_u64(o, "found", c->result.found);
	json_key_u64(o, "behind_gap", c->result.behind_gap);
	json_key_u64(o, "evicted", c->result.evicted);
	json_key_u64(o, "policy_bytes", c->result.policy_bytes);
	json_key_f64(o, "ns_per_block", c->ns);
	json_close(o, '}');
}

static CGN_RC report_json(const struct bench *b, struct cgn_err *err)
{
	struct report_doc doc;
	struct json_out *o = report_begin(&doc, "evict");
	json_key_z(o, "trace", b->name);
	json_key_u64(o, "requests", b->trace.n);
	json_key_u64(o, "block_tokens", b->trace.block_tokens);
	json_key_u64(o, "prompt_blocks", b->trace.n_ids);
	json_key_u64(o, "distinct_blocks", b->ideal.distinct);
	json_key_f64(o, "ideal_hit_ratio", trace_found_ratio(b->ideal));
	json_key_u64(o, "shards", b->shards);
	json_key_bool(o, "begin_first", b->begin_first);
	json_key_open(o, "results", '[');
	for (size_t p = 0; p < b->n_policies; p++) {
		for (size_t i = 0; i < b->n_sizes; i++)
			put_case(b, p, i, o);
	}
	return report_end(&doc, err);
}

static CGN_RC report_table(const struct bench *b, struct cgn_err *err)
{
	struct ctl_table t = {0};
	char headers[MAX_SIZES][32];
	(void)printf(
		"%zu requests, %zu blocks of %u tokens (%zu distinct); with room for all %.2f %% are found\n",
		b->trace.n, b->trace.n_ids, b->trace.block_tokens, b->ideal.distinct,
		100 * trace_found_ratio(b->ideal));
	ctl_table_column(&t, "FOUND", false);
	for (size_t i = 0; i < b->n_sizes; i++) {
		(void)snprintf(headers[i], sizeof headers[i], "%" PRIu64 " BLOCKS", b->blocks[i]);
		ctl_table_column(&t, headers[i], true);
	}
	ctl_table_column(&t, "NS A BLOCK", true);
	for (size_t p = 0; p < b->n_policies; p++) {
		double ns = 0;
		ctl_table_cell(&t, "%s", trial_text(b->policies[p]));
		for (size_t i = 0; i < b->n_sizes; i++) {
			ctl_table_cell(&t, "%.2f %%", 100 * trial_ratio(&b->cases[p][i].result));
			ns += b->cases[p][i].ns / (double)b->n_sizes;
		}
		ctl_table_cell(&t, "%.0f", ns);
	}
	return ctl_table_print(&t, false, err);
}

/* ---- set-up ---- */

static CGN_RC no_policy(struct cgn_str word, struct cgn_err *err)
{
	struct cgn_buf known = {0};
	for (enum trial_policy p = 0; p < TRIAL_POLICIES; p++)
		cgn_buf_fmt(&known, "%s%s", p > 0 ? ", " : "", trial_text(p));
	cgn_rc rc = CGN_FAIL(err, INVALID, "--policy: there is no '%.*s'; there are %s, each once",
		(int)(word.n < 40 ? word.n : 40), word.p, cgn_buf_z(&known));
	cgn_buf_fini(&known);
	return rc;
}

static bool has_policy(const struct bench *b, enum trial_policy p)
{
	for (size_t i = 0; i < b->n_policies; i++) {
		if (b->policies[i] == p)
			return true;
	}
	return false;
}

static CGN_RC read_policies(const char *list, struct bench *b, struct cgn_err *err)
{
	struct cgn_str rest = cgn_str_of(list);
	while (rest.p != NULL) {
		struct cgn_str word = cgn_str_trim(cgn_str_split(&rest, ','));
		enum trial_policy p = TRIAL_EVICT;
		if (!trial_find(word, &p) || has_policy(b, p))
			return no_policy(word, err);
		b->policies[b->n_policies++] = p;
	}
	return CGN_OK;
}

static CGN_RC run_bench(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	b->begin_first = ctl_switch(a, "--begin-first");
	CGN_TRY(ctl_flag_u32(a, "--shards", 1, 4096, &b->shards, err));
	CGN_TRY(ctl_flag_u64s(a, "--blocks", b->shards, UINT32_MAX - 1, b->blocks, MAX_SIZES, &b->n_sizes,
		err));
	CGN_TRY(read_policies(ctl_flag(a, "--policy"), b, err));
	CGN_TRY(ctl_trace_of(a, &b->trace, &b->name, err));
	CGN_TRY(trace_one_cache(&b->trace, 0, &b->ideal, err));
	for (size_t p = 0; p < b->n_policies; p++) {
		for (size_t i = 0; i < b->n_sizes; i++)
			CGN_TRY(run_one(b, p, i, err));
	}
	ctl_progress_end();
	return (a->json ? report_json : report_table)(b, err);
}

CGN_RC ctl_bench_evict(const struct ctl_args *a, struct cgn_err *err)
{
	struct bench *b = CGN_NEW(struct bench);
	cgn_rc rc = run_bench(a, b, err);
	trace_fini(&b->trace);
	free(b);
	return rc;
}
