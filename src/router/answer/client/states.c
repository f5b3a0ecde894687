/* SPDX-License-Identifier: Apache-2.0 */
/* states: the table of a request's states, which brings the handlers of all folders together. */
#include "router/answer/plan/states.h"
#include "router/answer/answer/reply.h"
#include "router/answer/client/client_priv.h"
#include "router/answer/files/files.h"
#include "router/request/hooks/hooks.h"
#include "router/request/limit/limit.h"
#include "router/request/tokens/tokens.h"

#define TO(state) 1U << GW_##state
const struct gw_state_row gw_states[GW_STATE_COUNT] = {
#define STATE(id, handler, exits, why) {handler, exits},
#include "router/request/request/gw_states.def"
#undef STATE
};
#undef TO
