/* SPDX-License-Identifier: Apache-2.0 */
/* states: the table of a request's states, which brings the handlers of all folders together. */
#include "router/plan/states.h"
#include "router/answer/reply.h"
#include "router/client/client_priv.h"
#include "router/files/files.h"
#include "router/hooks/hooks.h"
#include "router/limit/limit.h"
#include "router/tokens/tokens.h"

#define TO(state) 1U << GW_##state
const struct gw_state_row gw_states[GW_STATE_COUNT] = {
#define STATE(id, handler, exits, why) {handler, exits},
#include "router/request/gw_states.def"
#undef STATE
};
#undef TO
