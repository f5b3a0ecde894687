/* SPDX-License-Identifier: Apache-2.0 */
/* change: requests that change what the engine has in memory, for adapters.h. */
#pragma once
#include "io/wire/webask/webask.h"
#include "policy/node/engine/change.h"

/* Time in which routers hear that an engine takes no more requests, and report those that are on their
 * way. */
#define ENGINE_HEARD (500 * CGN_MSEC)

struct engine;
/* Ask for a change; as engine_change_ask and webask_start. False: engines of this kind cannot, or the request cannot
 * be sent now, which is logged. */
bool engine_change_start(struct engine *e, enum engine_change what, struct cgn_str name, struct cgn_str path,
	cgn_nsec timeout, webask_done *done, struct webask **out);
/* Write the status and the message with which the engine refused the change. */
void engine_answer_text(const struct webask_answer *r, char *out, size_t cap);
/* True when |inflight| requests have ended since |since|, or had agent.drain_timeout. */
bool engine_drained(const struct engine *e, cgn_nsec since, uint32_t inflight);
