/* SPDX-License-Identifier: Apache-2.0 */
/* handoff, inside: the state that both sides share. */
#pragma once
#include "base/core/list.h"
#include "base/weburl/weburl.h"
#include "io/wire/webask/webask.h"
#include "sim/handoff/handoff.h"

struct sim_peer { /* Another simulator. */
	struct weburl url;
	struct http_client *client;
	struct webask_endpoint at;
};

struct sim_handoff {
	uint32_t tag;
	struct cgn_loop *loop;
	const struct sim_cfg *cfg;
	char engine[40];
	struct cgn_link offers;
	uint32_t n_offers;
	struct sim_peer *peers[SIM_PEERS_MAX];
	uint32_t n_peers;
	struct sim_handoff_stats stats;
};
