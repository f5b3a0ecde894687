/* SPDX-License-Identifier: Apache-2.0 */
/* gate: the state GW_GATE, in which a smaller model's answer is held back until it is judged. */
#pragma once
#include "router/answer/plan/legs.h"

/* The answer of a leg that is held has begun: go to GW_GATE, or to the next model's leg if it is an error. */
enum gw_step gw_gate_begin(struct gw_req *r);
/* In GW_GATE: bytes of the answer came. */
void gw_gate_data(struct gw_req *r, struct cgn_str data);
