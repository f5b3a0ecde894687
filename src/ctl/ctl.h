/* SPDX-License-Identifier: Apache-2.0 */
/* ctl: the verbs of cgn-ctl. */
#pragma once
#include "joint/ctl/line/line.h"

extern const struct ctl_verb ctl_verbs[]; /* With the verbs of bench, which cgn-lab carries out. */
extern const size_t ctl_n_verbs;

#define VERB(path, arguments, run, summary, examples) \
	CGN_RC run(const struct ctl_args *a, struct cgn_err *err); /* Several verbs may have one function. */
#define BENCH(path, arguments, run, summary, examples)
#include "joint/ctl/line/verbs.def"
#undef VERB
#undef BENCH

/* GET |path| of the admin port that --admin, --ca, --crl, --cert, --key and $CGN_API_KEY name, and append the answer. */
CGN_RC ctl_admin_get(const struct ctl_args *a, const char *path, struct cgn_buf *out, struct cgn_err *err);
