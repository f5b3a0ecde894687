/* SPDX-License-Identifier: Apache-2.0 */
/* publisher: one rank's KV events on the wire, as vLLM and SGLang publish them: a PUB socket that sends
 * [topic][number, 8 bytes, big-endian][batch], and a ROUTER that answers ["", number] with each later batch
 * that is kept, as ["", topic, number, batch] or without the topic (before vLLM 0.26, SGLang), and ends with
 * number -1 and an empty batch. Rank r binds r ports further on, or behind "_dpR". Bounds: what is kept is
 * |buffer| batches and SIM_REPLAY_BYTES, the oldest go first; as much waits for each slow peer. One loop. */
#pragma once
#include "io/loop/loop.h"
#include "sim/events/events.h"
#include "sim/faults/faults.h"

#define SIM_REPLAY_BYTES ((size_t)512 << 20)

struct sim_publisher_cfg {
	const char *endpoint; /* "tcp://host:port" (an asterisk for the host, port 0: any) or "ipc:///path" */
	const char *replay;   /* "": no replays */
	const char *topic;
	unsigned rank;
	uint32_t buffer; /* batches */
	bool replay_topic;
};
struct sim_publisher;
/* INVALID: an endpoint; ADDRESS_IN_USE and others when it can't bind. |events| and |faults| are borrowed for
 * its life. */
CGN_RC sim_publisher_new(struct cgn_loop *l, const struct sim_publisher_cfg *cfg, struct sim_events *events,
	struct sim_faults *faults, struct sim_publisher **out, struct cgn_err *err);
void sim_publisher_free(struct sim_publisher **take); /* NULL-safe */
/* What was told since the last call goes out as one batch, if anything was. True when a fault wants the
 * engine to have restarted behind it: the caller empties its caches silently; numbers begin at 0 already. */
bool sim_publisher_flush(struct sim_publisher *p);
uint64_t sim_publisher_next(const struct sim_publisher *p); /* the next batch's number */
/* Where it is bound, ports as they came out; |replay|: the other socket, "" when there is none. */
void sim_publisher_endpoint(const struct sim_publisher *p, bool replay, char out[300]);
CGN_RC sim_endpoint_check(const char *endpoint, struct cgn_err *err);
