/* SPDX-License-Identifier: Apache-2.0 */
/* run: the agent as joint/svc runs it. */
#pragma once
#include "agent/agent.h"

CGN_RC agent_start(struct svc *s, const struct config *cfg, void **state, struct cgn_err *err);
void agent_reload(void *state, const struct config *cfg);
void agent_drain(void *state);
void agent_drain_step(struct agent *a); /* something ended: go on with draining, if it was asked for */
void agent_stop(void **take);
bool agent_is_ready(const struct agent *a);               /* at least one engine is */
bool agent_admin_ready(void *agent, struct cgn_buf *why); /* for /readyz */
