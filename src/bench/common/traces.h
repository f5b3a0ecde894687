/* SPDX-License-Identifier: Apache-2.0 */
/* traces: reads or generates a trace, as the flags say, and the flags of replays. */
/* common, the room: what the verbs share: traces, the flags of replays. */
#pragma once
#include "bench/bench.h"
#include "lab/replay/replay.h"
#include "lab/workload/workload.h"

/* Parse a trace file of at most 4 GiB. */
CGN_RC ctl_trace_read(const char *path, uint32_t block_tokens, size_t limit, struct trace *out,
	struct cgn_err *err);
/* Read the verb's trace: the file on the command line, or --generate KIND, with --limit and --block-tokens.
 * |*name| is borrowed: the file name without folders, which makes reports comparable between machines, or the
 * kind. */
CGN_RC ctl_trace_of(const struct ctl_args *a, struct trace *out, const char **name, struct cgn_err *err);
/* Parse a flag's value in [least, most]. */
CGN_RC ctl_flag_f64(const struct ctl_args *a, const char *name, double least, double most, double *out,
	struct cgn_err *err);
CGN_RC ctl_flag_u32(const struct ctl_args *a, const char *name, uint64_t min, uint64_t max, uint32_t *out,
	struct cgn_err *err);
/* Read the flags of the engine; those not given keep what |c| has. */
CGN_RC ctl_engine_flags(const struct ctl_args *a, struct replay_cfg *c, struct cgn_err *err);
/* Write |text| to a file, and free |text|. */
CGN_RC ctl_write(const char *path, struct cgn_buf *text, struct cgn_err *err);
/* Move the arrivals of |t| so that they take a day with a quiet night and a peak in the afternoon. */
void ctl_trace_day(struct trace *t);
/* Let |t|, a day, be the first of |n| days with other prompts, the first block apart, which stays. Each workday keeps 80 to 100 % of
 * the requests, the sixth and seventh day of a week 30 %. The trace begins on a Monday. NO_MEMORY, TOO_LARGE. */
CGN_RC ctl_trace_days(struct trace *t, uint32_t n, uint64_t seed, struct cgn_err *err);
/* Return the share of |of| requests, or of the samples if these are more, whose sample is at most |ms|. |ms| 0: any. */
double ctl_share_within(struct samples *s, double ms, uint64_t of);
/* Fill |out| with the rules of the default configuration. */
CGN_RC ctl_rules_of(struct route_rules *out, struct cgn_err *err);
