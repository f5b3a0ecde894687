/* SPDX-License-Identifier: Apache-2.0 */
/* powerbudget: says when the measured power of the nodes is above router.energy.budget, and when the budget lets no request pass: in the log, and to --check, which knows of the nodes what a
 * file of cluster.state_dir has, written when the least power of a request changes by a tenth. On the control loop. */
#pragma once
#include "base/core/err.h"

struct config;
struct router;
struct router_power {
	struct statefile *file; /* NULL: not open. */
	double written_w;
	bool starved, passed; /* Said in the log: no request passes; the nodes draw more. */
	cgn_nsec passed_at;   /* Last time that the nodes drew more. */
};
void router_power_open(struct router *r, const char *path);
void router_power_close(struct router *r);
void router_power_follow(struct router *r, cgn_nsec now);
/* INVALID: no request would pass, by the file of the last run. A file that is missing or damaged says nothing. */
CGN_RC router_power_check(const struct config *cfg, struct cgn_err *err);
