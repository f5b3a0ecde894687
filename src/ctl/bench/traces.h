/* SPDX-License-Identifier: Apache-2.0 */
/* traces: a trace from a file, or made up. */
#pragma once
#include "ctl/ctl.h"
#include "lab/workload/workload.h"

/* trace_parse of a file of at most 4 GiB. */
CGN_RC ctl_trace_read(const char *path, uint32_t block_tokens, size_t limit, struct trace *out,
	struct cgn_err *err);
/* As --requests, --rate, --seed and --block-tokens say. */
CGN_RC ctl_trace_make(const struct ctl_args *a, const char *kind, struct trace *out, struct cgn_err *err);
/* The one that a verb is about: a file (its word) or --generate KIND, with --limit and --block-tokens. *name
 * is borrowed: the file's without folders, or the kind. Reports are for other machines too. */
CGN_RC ctl_trace_of(const struct ctl_args *a, struct trace *out, const char **name, struct cgn_err *err);
/* A flag's value in [least, most]. */
CGN_RC ctl_flag_f64(const struct ctl_args *a, const char *name, double least, double most, double *out,
	struct cgn_err *err);
CGN_RC ctl_flag_u32(const struct ctl_args *a, const char *name, uint64_t min, uint64_t max, uint32_t *out,
	struct cgn_err *err);
/* |text| into a file, and free it. */
CGN_RC ctl_write(const char *path, struct cgn_buf *text, struct cgn_err *err);
