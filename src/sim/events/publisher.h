/* SPDX-License-Identifier: Apache-2.0 */
/* publisher: sends one rank's KV events as vLLM and SGLang do. A PUB socket sends [topic][number, 8 bytes,
 * big-endian] [batch]. A ROUTER socket answers ["", number] with every kept batch from that number on, as
 * ["", topic, number, batch] or without the topic (before vLLM 0.26, SGLang), then number -1 and an empty
 * batch. Rank r binds the port r higher, or a path with suffix "_dpR". Bounds: |buffer| batches and
 * SIM_REPLAY_BYTES are kept, the oldest are dropped first; the same bound holds for the queue of each slow
 * peer. One loop. */
#pragma once
#include "io/os/loop/loop.h"
#include "sim/events/events.h"
#include "sim/faults/faults.h"

#define SIM_REPLAY_BYTES ((size_t)512 << 20)

struct sim_publisher_cfg {
	const char *endpoint; /* "tcp://host:port" ("*" as the host, port 0: any) or "ipc:///path". */
	const char *replay;   /* "": no replays. */
	const char *topic;
	unsigned rank;
	uint32_t buffer; /* Batches. */
	bool replay_topic;
};
struct sim_publisher;
/* Bind and start. INVALID: a bad endpoint; ADDRESS_IN_USE and others when binding fails. |events| and
 * |faults| are borrowed until sim_publisher_free. */
CGN_RC sim_publisher_new(struct cgn_loop *l, const struct sim_publisher_cfg *cfg, struct sim_events *events,
	struct sim_faults *faults, struct sim_publisher **out, struct cgn_err *err);
void sim_publisher_free(struct sim_publisher **take); /* Accepts NULL. */
/* Publish the events since the last call as one batch, if there are any. True when a fault asks for an engine
 * restart after the batch: the caller must empty its caches silently; batch numbers already start at 0
 * again. */
bool sim_publisher_flush(struct sim_publisher *p);
uint64_t sim_publisher_next(const struct sim_publisher *p); /* Number of the next batch. */
/* Write the bound endpoint, with its actual port. |replay|: that of the replay socket; "" when there is
 * none. */
void sim_publisher_endpoint(const struct sim_publisher *p, bool replay, char out[300]);
CGN_RC sim_endpoint_check(const char *endpoint, struct cgn_err *err);
