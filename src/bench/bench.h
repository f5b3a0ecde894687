/* SPDX-License-Identifier: Apache-2.0 */
/* bench: the verbs of cgn-lab. */
#pragma once
#include "joint/ctl/line/line.h"

#define VERB(path, arguments, run, summary, examples)
#define BENCH(path, arguments, run, summary, examples) \
	CGN_RC run(const struct ctl_args *a, struct cgn_err *err);
#include "joint/ctl/line/verbs.def"
#undef VERB
#undef BENCH
