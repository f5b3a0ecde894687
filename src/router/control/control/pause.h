/* SPDX-License-Identifier: Apache-2.0 */
/* pause: tells agents that a conversation waits for a tool. Control loop. */
#pragma once

struct gw_pause;

/* Tell the node's agent that a conversation waits for a tool. */
void router_pause_tell(void *user, const struct gw_pause *pause);
