/* SPDX-License-Identifier: Apache-2.0 */
/* health: the agent's view of the engine's readiness (joint/node/engineview): its reason for people, and a
 * stall. */
#pragma once
#include "policy/node/engine/supervise.h"

struct engine;
struct engine_checks {
	char trouble[600]; /* Why the engine is not ready, for people; empty when it is */
	bool stalled;      /* Not ready since it answered no check and brought no byte */
};
void engine_trouble_set(struct engine *e, const char *what);
/* Callbacks of joint/node/engineview. */
void engine_probed(void *user, enum supervise_event verdict, const char *why);
void engine_probe_slow(void *user, const char *why);
void engine_stalled(void *user);
