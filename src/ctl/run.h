/* SPDX-License-Identifier: Apache-2.0 */
/* run: programs of the system, run to their end without a shell. All functions: the one thread of cgn-ctl. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"

#include <limits.h>

/* Write the path of this program, or its folder, with links resolved, into |out|. INTERNAL, and "": it cannot be found. */
CGN_RC ctl_run_self(char out[PATH_MAX], struct cgn_err *err);
CGN_RC ctl_run_folder(char out[PATH_MAX], struct cgn_err *err);

/* Run a program for at most |most|, and append what it writes to both outputs (at most 1 MiB unless |out| has a
 * limit). Returns its exit status; -1: it could not be run, a signal ended it, or it took too long. */
int ctl_run_read(const char *const *argv, cgn_nsec most, struct cgn_buf *out);
/* Run a program with this program's output; |input| (NULL: this program's) is its standard input. Returns its exit
 * status; 127: it cannot be started. */
int ctl_run_shown(char *const argv[], const struct cgn_str *input);
