/* SPDX-License-Identifier: Apache-2.0 */
/* enginefeed: the KV events of one engine, from its ZeroMQ sockets into the node's holdings. One
 * policy/kv/kvsource serves each data-parallel rank: rank r publishes at the endpoint's port + r (ipc: at the
 * path with "_dp" and r appended), as vLLM and SGLang do.
 *
 * Wire: PUB sends [topic][number, 8 bytes, big-endian][batch]. A replay asks a ROUTER with ["", number] and
 * gets ["", number, batch] for each batch, since vLLM 0.26 with the topic in between, then the number -1 with
 * an empty batch. Frames before the last two are ignored. Pings keep an idle connection alive where the
 * publisher speaks ZMTP 3.1 (libzmq since 4.2). A silent engine is not stale; an engine without a connection
 * is. Memory: that of policy/kv/kvsource, and at most 16 MiB for each socket while a message arrives. One loop,
 * its thread. */
#pragma once
#include "io/os/loop/loop.h"
#include "policy/kv/kvsource/kvsource.h"

#define ENGINEFEED_MAX_RANKS 64

struct telemetry;
struct enginefeed_cfg {
	struct telemetry *telemetry; /* Borrowed */
	const char *name;            /* Engine name, for the log and metrics */
	const char *events;          /* Endpoint of rank 0 */
	const char *replay;          /* Replay endpoint of rank 0; NULL: none */
	struct cgn_str topic;
	uint32_t ranks;             /* 1 to ENGINEFEED_MAX_RANKS */
	struct kvsource_cfg source; /* |can_replay| is set by the feed */
};
struct enginefeed_rank {
	enum kvsource_state state;
	const char *why; /* Borrowed until the next turn */
	struct kvsource_stats stats;
};

struct enginefeed;
/* Check endpoints, ranks and topic; opens nothing. CGN_INVALID: err->msg names the error. */
CGN_RC enginefeed_check(const struct enginefeed_cfg *cfg, struct cgn_err *err);
/* Open the sockets of all ranks. |changed| is called, never inline, when the state of a rank or its reason
 * changed. |h| outlives the feed. CGN_INVALID. */
CGN_RC enginefeed_open(struct cgn_loop *l, const struct enginefeed_cfg *cfg, struct holdings *h,
	void (*changed)(void *user), void *user, struct enginefeed **out, struct cgn_err *err);
/* NULL-safe; the blocks that the feed added leave the holdings */
void enginefeed_close(struct enginefeed **take);
uint32_t enginefeed_ranks(const struct enginefeed *f);
struct enginefeed_rank enginefeed_rank(const struct enginefeed *f, uint32_t rank);
