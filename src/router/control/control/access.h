/* SPDX-License-Identifier: Apache-2.0 */
/* access: the file of the access log. Control loop. */
#pragma once
#include "base/core/err.h"

struct router;

/* Open the file of the access log, or open it again; does nothing when no file is set. */
CGN_RC router_access_open(struct router *r, struct cgn_err *err);
void router_access_reload(struct router *r); /* The same at a reload: a failure is logged. */
void router_access_report(
	struct router *r); /* Count and log the lines that were dropped since the last call. */
void router_access_close(struct router *r);
