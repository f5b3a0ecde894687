/* SPDX-License-Identifier: Apache-2.0 */
/* engines: nodes without an agent become members. Control loop. */
#pragma once
#include "base/core/arena.h"
#include "base/core/err.h"
#include "cognitora/v1/control.pb-c.h"

struct json_out;
struct router;

/* Fill |rs|, in |a|. False: out of memory. */
bool router_pools_fill(const struct router *r, Cognitora__V1__StatusResponse *rs, struct cgn_arena *a);
/* Write the pools of nodes without an agent, an array of objects. */
void router_pools_json(const struct router *r, struct json_out *j);
/* Make the engines without an agent members. CGN_INVALID, CGN_TLS: settings or files are wrong; CGN_NO_MEMORY. */
CGN_RC router_engines_open(struct router *r, struct cgn_err *err);
