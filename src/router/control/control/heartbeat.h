/* SPDX-License-Identifier: Apache-2.0 */
/* heartbeat: whether each peer that is a cluster is there, and how long the way is. Control loop. */
#pragma once
#include "base/core/err.h"

struct router;

/* Ask each peer that is a cluster four times a second whether it is there, and measure the way. One that is
 * silent for a second is lost: its calls fail, and no request leaves for it until it answers again. */
CGN_RC router_heartbeat_open(struct router *r, struct cgn_err *err);
void router_heartbeat_close(struct router *r);
