/* SPDX-License-Identifier: Apache-2.0 */
/* watch: routers follow the node's description, load and held blocks (Agent.Watch). Each watcher has a list of
 * digests whose state the watcher has yet to learn, and a set of ranges to send from their beginning. A snapshot
 * is all ranges, a repair some, and a list that grows too long becomes the ranges of its digests. So a watcher
 * costs a bounded amount of memory, and once it catches up it knows the latest state. */
#pragma once
#include "base/core/list.h"
#include "io/os/loop/loop.h"
#include "io/wire/grpc/grpc.h"
#include "policy/kv/holdings/holdings.h"
#include "policy/node/proto/proto.h"
#include "policy/power/energy/energy.h"
#include "policy/who/share/share.h"

#define WATCH_MAX_WATCHERS 64

struct watch_ops {
	/* Fill in the node's load as |router| is told it: in total, and the router's share. */
	void (*load)(void *user, uint64_t router, Cognitora__V1__Load *out);
	/* Fill in the node's energy; |watts| has room for ENERGY_KNOTS + 1 numbers. False: it is not counted. */
	bool (*energy)(void *user, Cognitora__V1__Energy *out, float *watts);
	Cognitora__V1__ResidencySource (*source)(void *user);
	/* Milliseconds since the oldest silent source was heard; 0: all sources are in contact. */
	uint64_t (*stale_ms)(void *user);
	/* Take note that the requests that routers have straight at the engine (watch_direct) may have changed. |heard|:
	 * the engine brings bytes. */
	void (*direct_changed)(void *user, bool heard);
	/* A router told which models operators want. */
	void (*wanted_told)(void *user, const Cognitora__V1__WantedModels *doc);
	/* A router told that a conversation waits for a tool. */
	void (*pause_told)(void *user, const Cognitora__V1__Pause *pause);
};
struct watch {
	struct cgn_loop *loop;
	const struct watch_ops *ops;
	void *user;
	const struct holdings *holdings;
	const Cognitora__V1__Node *node; /* As last announced; borrowed */
	struct cgn_link watchers;
	size_t n_watchers;
	struct cgn_timer send_timer, check_timer, beat_timer;
	cgn_nsec sent_at; /* Last time that all watchers were sent to */
	uint64_t
		direct_whole_us; /* DirectLoad.whole_us of all calls, as it rose since the first message of each */
};
void watch_init(struct watch *w, struct cgn_loop *l, const struct watch_ops *ops, void *user);
void watch_fini(struct watch *w);
/* Take a call of Agent.Watch. */
void watch_open(struct watch *w, struct grpc_call *c);
/* Something changed; watchers are told soon, changes together. */
void watch_digest_changed(struct watch *w, uint64_t digest);
void watch_source_changed(struct watch *w);
void watch_load_changed(struct watch *w);
void watch_energy_changed(struct watch *w); /* The load is told again, with the energy. */
/* The node's description is |node| from now on; watchers are told at once. */
void watch_node_changed(struct watch *w, const Cognitora__V1__Node *node);
/* Return the requests that |router| has straight at the engine, as it told; 0: all routers' together. A router that
 * watches no more has none. */
struct share_row watch_direct(const struct watch *w, uint64_t router);
void watch_end_all(struct watch *w, const char *sentence);
