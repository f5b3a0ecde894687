/* SPDX-License-Identifier: Apache-2.0 */
/* pregate: how often small models' answers do not pass, learned by all workers together (policy/answer/cascade/pregate.c), and kept in a
 * file of cluster.state_dir over restarts. 32 KiB; a file of at most 128 KiB. */
#pragma once
#include "io/os/loop/loop.h"
#include "policy/answer/cascade/cascade.h"

struct gw_pregate;
/* On the control loop |l|: read the rates from the file |path|, and keep them there: the file is written five
 * seconds after a change at the latest, and at the end. A file that cannot be used is set aside. */
struct gw_pregate *gw_pregate_open(struct cgn_loop *l, const char *path);
void gw_pregate_close(struct gw_pregate **take); /* NULL-safe; no worker runs. On the control loop. */

/* cascade_is_hopeless and cascade_learn; any thread. */
bool gw_pregate_is_hopeless(struct gw_pregate *p, const struct cascade_group *g, double limit, double random);
void gw_pregate_learn(struct gw_pregate *p, const struct cascade_group *g, bool escalated);
