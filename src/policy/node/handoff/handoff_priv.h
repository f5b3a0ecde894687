/* SPDX-License-Identifier: Apache-2.0 */
/* handoff, inside: one file per family of engines. */
#pragma once
#include "policy/node/handoff/handoff.h"

extern const struct handoff_ops handoff_nixl, handoff_p2p, handoff_mooncake, handoff_sglang, handoff_trtllm;
