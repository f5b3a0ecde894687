/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/common/traces.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mix/mix.h"
#include "io/os/disk/disk.h"
#include "lab/enginemodel/profile.h"
#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"
#include "policy/route/chooser/chooser.h"

#define DAY_NS   (86400.0 * 1e9)
#define MAX_FILE ((size_t)4 << 30)

CGN_RC ctl_flag_u32(const struct ctl_args *a, const char *name, uint64_t min, uint64_t max, uint32_t *out,
	struct cgn_err *err)
{
	uint64_t v = 0;
	CGN_TRY(ctl_flag_u64(a, name, min, max, &v, err));
	*out = (uint32_t)v;
	return CGN_OK;
}

CGN_RC ctl_flag_f64(const struct ctl_args *a, const char *name, double least, double most, double *out,
	struct cgn_err *err)
{
	char *end = NULL;
	const char *text = ctl_flag(a, name);
	*out = strtod(text, &end);
	if (*end != '\0' || end == text || !(*out >= least) || *out > most)
		return CGN_FAIL(err, INVALID, "%s takes a number from %g to %g, not '%s'", name, least, most,
			text);
	return CGN_OK;
}

static CGN_RC profile_read(const char *name, struct replay_cfg *c, struct cgn_err *err)
{
	const struct enginemodel_profile *p = enginemodel_profile_find(cgn_str_of(name));
	if (p == NULL)
		return CGN_FAIL(err, INVALID, "there is no profile '%.60s'; cgn-sim --help lists them", name);
	const struct enginemodel_pace pace = enginemodel_profile_pace(p);
	c->prefill_tokens_per_s = pace.prefill_tokens_per_s;
	c->decode = pace.decode;
	c->batch_effect = pace.batch_effect;
	c->terms = pace.terms;
	return CGN_OK;
}

static CGN_RC terms_read(const struct ctl_args *a, struct enginemodel_terms *t, struct cgn_err *err)
{
	if (ctl_flag(a, "--kv-read-ns") != NULL)
		CGN_TRY(ctl_flag_f64(a, "--kv-read-ns", 0, 1e6, &t->context_ns, err));
	if (ctl_flag(a, "--attention-ns") != NULL)
		CGN_TRY(ctl_flag_f64(a, "--attention-ns", 0, 1e6, &t->pair_ns, err));
	t->overlaps = t->overlaps || ctl_switch(a, "--overlap");
	return CGN_OK;
}

CGN_RC ctl_engine_flags(const struct ctl_args *a, struct replay_cfg *c, struct cgn_err *err)
{
	double decode_ms = 0;
	if (ctl_flag(a, "--profile") != NULL)
		CGN_TRY(profile_read(ctl_flag(a, "--profile"), c, err));
	CGN_TRY(terms_read(a, &c->terms, err));
	if (ctl_flag(a, "--prefill-tokens-per-s") != NULL)
		CGN_TRY(ctl_flag_f64(a, "--prefill-tokens-per-s", 0, 1e9, &c->prefill_tokens_per_s, err));
	if (ctl_flag(a, "--decode-ms") != NULL) {
		CGN_TRY(ctl_flag_f64(a, "--decode-ms", 0, 60000, &decode_ms, err));
		c->decode = (cgn_nsec)(decode_ms * 1e6);
	}
	if (ctl_flag(a, "--batch-effect") != NULL)
		CGN_TRY(ctl_flag_f64(a, "--batch-effect", 0, 10, &c->batch_effect, err));
	if (ctl_flag(a, "--max-batch") != NULL)
		CGN_TRY(ctl_flag_u32(a, "--max-batch", 1, 1000000, &c->max_batch, err));
	if (ctl_flag(a, "--step-tokens") != NULL)
		CGN_TRY(ctl_flag_u32(a, "--step-tokens", 1, TRACE_MAX_TOKENS, &c->step_tokens, err));
	if (c->step_tokens < c->max_batch)
		return CGN_FAIL(err, INVALID,
			"--step-tokens %u is less than --max-batch %u: each sequence needs one a step",
			c->step_tokens, c->max_batch);
	return CGN_OK;
}

CGN_RC ctl_trace_read(const char *path, uint32_t block_tokens, size_t limit, struct trace *out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_TRY(disk_read_file(path, MAX_FILE, &text, err));
	return trace_parse(cgn_buf_view(&text), path, block_tokens, limit, out, err);
}

static CGN_RC no_kind(const char *kind, struct cgn_err *err)
{
	struct cgn_buf known = {0};
	for (enum workload_kind k = 0; k < WORKLOAD_KINDS; k++)
		cgn_buf_fmt(&known, "%s%s", k > 0 ? ", " : "", workload_text(k));
	cgn_rc rc =
		CGN_FAIL(err, INVALID, "there is no workload '%.60s'; there are %s", kind, cgn_buf_z(&known));
	cgn_buf_fini(&known);
	return rc;
}

/* Generate a trace as --requests, --rate, --seed and --block-tokens say. */
static CGN_RC ctl_trace_make(const struct ctl_args *a, const char *kind, struct trace *out,
	struct cgn_err *err)
{
	struct workload_cfg cfg = {0};
	uint64_t requests = 0;
	if (!workload_find(cgn_str_of(kind), &cfg.kind))
		return no_kind(kind, err);
	CGN_TRY(ctl_flag_u64(a, "--requests", 1, TRACE_MAX_REQUESTS, &requests, err));
	CGN_TRY(ctl_flag_u64(a, "--seed", 0, UINT32_MAX, &cfg.seed, err));
	CGN_TRY(ctl_flag_u32(a, "--block-tokens", 0, TRACE_MAX_TOKENS, &cfg.block_tokens, err));
	CGN_TRY(ctl_flag_f64(a, "--rate", 1e-6, 1e6, &cfg.rate, err));
	cfg.requests = (size_t)requests;
	return workload_make(&cfg, out, err);
}

CGN_RC ctl_trace_of(const struct ctl_args *a, struct trace *out, const char **name, struct cgn_err *err)
{
	const char *kind = ctl_flag(a, "--generate");
	uint64_t limit = 0;
	uint32_t block_tokens = 0;
	if ((kind == NULL) == (a->n_words == 0))
		return CGN_FAIL(err, INVALID, "give either a trace file or --generate KIND");
	CGN_TRY(ctl_flag_u64(a, "--limit", 0, TRACE_MAX_REQUESTS, &limit, err));
	CGN_TRY(ctl_flag_u32(a, "--block-tokens", 0, TRACE_MAX_TOKENS, &block_tokens, err));
	CGN_TRY(kind != NULL ? ctl_trace_make(a, kind, out, err)
			     : ctl_trace_read(a->words[0], block_tokens, (size_t)limit, out, err));
	const char *path = kind != NULL ? kind : a->words[0], *slash = strrchr(path, '/');
	*name = slash != NULL ? slash + 1 : path;
	return CGN_OK;
}

CGN_RC ctl_write(const char *path, struct cgn_buf *text, struct cgn_err *err)
{
	FILE *f = text->bad ? NULL : fopen(path, "we");
	bool written = f != NULL && fwrite(text->p, 1, text->n, f) == text->n;
	if (f != NULL)
		written = fclose(f) == 0 && written;
	bool bad = text->bad;
	cgn_buf_fini(text);
	if (bad)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the contents of %s", path);
	return written ? CGN_OK : CGN_FAIL(err, STORAGE, "cannot write %s: %s", path, strerror(errno));
}

CGN_RC ctl_bench_workload(const struct ctl_args *a, struct cgn_err *err)
{
	struct trace t = {0};
	struct cgn_buf text = {0};
	CGN_TRY(ctl_trace_make(a, a->words[0], &t, err));
	trace_write(&t, &text);
	trace_fini(&t);
	const char *to = ctl_flag(a, "--out");
	return to != NULL ? ctl_write(to, &text, err) : ctl_print(&text, err);
}

/* ---- a day ---- */

/* Requests by the hour of a day, as a share of the busiest hour: quiet nights, a peak in the afternoon. */
static const double hours[24] = {0.22, 0.16, 0.12, 0.10, 0.10, 0.12, 0.18, 0.32, 0.55, 0.78, 0.90, 0.95, 0.93,
	0.97, 1.00, 0.99, 0.95, 0.88, 0.80, 0.72, 0.64, 0.54, 0.42, 0.31};

void ctl_trace_day(struct trace *t)
{
	double all = 0, before = 0, span = (double)t->requests[t->n - 1].at + 1;
	size_t h = 0;
	for (size_t i = 0; i < CGN_COUNT(hours); i++)
		all += hours[i];
	for (size_t i = 0; i < t->n; i++) {
		double part = (double)t->requests[i].at / span * all;
		while (part > before + hours[h])
			before += hours[h++];
		t->requests[i].at = (cgn_nsec)(((double)h + (part - before) / hours[h]) * DAY_NS / 24);
	}
}

/* Draw the share of a day's requests that come. */
static double day_share(uint32_t day, uint64_t *random)
{
	double any = (double)(mix_splitmix(random) >> 11) * 0x1p-53;
	return day % 7 < 5 ? 0.8 + 0.2 * any : 0.3;
}

static CGN_RC request_copy(struct trace *t, size_t i, uint32_t day, struct cgn_err *err)
{
	struct trace_request r = t->requests[i];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf copy = {0};
	void *room = cgn_buf_room(&copy, r.n * sizeof(uint64_t));
	uint64_t *ids = room;
	if (ids == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for %u days", day + 1);
	memcpy(ids, trace_ids(t, &r), r.n * sizeof *ids);
	for (uint32_t k = 1; k < r.n; k++)
		ids[k] = mix64(ids[k] + ((uint64_t)day << 48));
	r.at += day * (cgn_nsec)DAY_NS;
	r.session = r.session != 0 ? mix64(r.session + day) | 1 : 0;
	return trace_add(t, &r, ids, r.n);
}

CGN_RC ctl_trace_days(struct trace *t, uint32_t n, uint64_t seed, struct cgn_err *err)
{
	const size_t a_day = t->n;
	uint64_t random = seed;
	for (uint32_t day = 1; day < n; day++) {
		double share = day_share(day, &random);
		for (size_t i = 0; i < a_day; i++)
			if ((double)(mix_splitmix(&random) >> 11) * 0x1p-53 < share)
				CGN_TRY(request_copy(t, i, day, err));
	}
	return CGN_OK;
}

/* ---- results and settings ---- */

static double samples_within(struct samples *s, double ms)
{
	double lo = 0, hi = 1;
	if (!(ms > 0))
		return 1;
	for (int i = 0; i < 24; i++) {
		double q = (lo + hi) / 2;
		*(samples_ms(s, q) <= ms ? &lo : &hi) = q;
	}
	return hi > 0.9999999 ? 1 : lo;
}

double ctl_share_within(struct samples *s, double ms, uint64_t of)
{
	uint64_t n = samples_count(s);
	if (n == 0)
		return 0;
	return samples_within(s, ms) * (of > n ? (double)n / (double)of : 1);
}

CGN_RC ctl_rules_of(struct route_rules *out, struct cgn_err *err)
{
	struct config *cfg = NULL;
	CGN_TRY(settings_load("defaults", CGN_STR(""), NULL, NULL, 0, &cfg, err));
	chooser_rules_fill(cfg, out);
	config_free(&cfg);
	return CGN_OK;
}
