/* SPDX-License-Identifier: Apache-2.0 */
/* arms: the comparison of policies that sessions really follow (policy/route/arms), of all workers together. Any thread;
 * a lock is held for some microseconds, only while router.shadow_share is above 0. */
#pragma once
#include "policy/route/arms/arms.h"
#include "policy/route/arms/unit.h"

struct gw_arms;
struct gw_arms *gw_arms_open(void);
void gw_arms_close(struct gw_arms **take); /* NULL-safe; no worker runs. */

void gw_arms_set(struct gw_arms *a, const struct arms_rules *rules);
struct arms_seat gw_arms_seat(struct gw_arms *a, const struct unit_ask *ask, uint64_t tokens);
void gw_arms_add(struct gw_arms *a, const struct arms_seat *seat, const struct arms_outcome *o);
/* Compare shadow |i| of the rules that were set last. */
void gw_arms_estimate(struct gw_arms *a, size_t i, struct arms_estimate out[ARMS_FIGURES]);
