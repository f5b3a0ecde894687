/* SPDX-License-Identifier: Apache-2.0 */
/* enginefeed: the KV events of one engine, from its ZeroMQ sockets into the node's holdings. One
 * policy/kvsource for each data-parallel rank: rank r publishes at the endpoint's port + r (ipc: its path
 * with "_dp" and r behind), as vLLM and SGLang do.
 *
 * On the wire: PUB sends [topic][number, 8 bytes, big-endian][batch]; a replay asks a ROUTER with ["",
 * number] and gets ["", number, batch] for each, since vLLM 0.26 with the topic in between, then the number
 * -1 with an empty batch. Whatever stands before the last two frames is passed over. A connection that is
 * idle is kept alive by pings where the publisher speaks ZMTP 3.1 (libzmq since 4.2); an engine that has
 * nothing to say is not stale, one whose connection is gone is. Memory: a source's (policy/kvsource), and a
 * socket's 16 MiB at most while a message comes in. One loop, its thread. */
#pragma once
#include "io/loop/loop.h"
#include "policy/kvsource/kvsource.h"

#define ENGINEFEED_MAX_RANKS 64

struct telemetry;
struct enginefeed_cfg {
	struct telemetry *telemetry; /* borrowed */
	const char *name;            /* of the engine: in the log and in metrics */
	const char *events;          /* endpoint of rank 0 */
	const char *replay;          /* the same; NULL: none */
	struct cgn_str topic;
	uint32_t ranks;             /* 1 to ENGINEFEED_MAX_RANKS */
	struct kvsource_cfg source; /* can_replay is the feed's business */
};
struct enginefeed_rank {
	enum kvsource_state state;
	const char *why; /* borrowed until the next turn */
	struct kvsource_stats stats;
};

struct enginefeed;
/* Endpoints, ranks and topic, before anything is opened. INVALID: err->msg names what is wrong. */
CGN_RC enginefeed_check(const struct enginefeed_cfg *cfg, struct cgn_err *err);
/* |changed|: the state of a rank, or why it is what it is; never inline. |h| outlives it. INVALID,
 * NO_MEMORY. */
CGN_RC enginefeed_open(struct cgn_loop *l, const struct enginefeed_cfg *cfg, struct holdings *h,
	void (*changed)(void *user), void *user, struct enginefeed **out, struct cgn_err *err);
void enginefeed_close(struct enginefeed **take); /* what it held leaves the holdings. NULL-safe */
uint32_t enginefeed_ranks(const struct enginefeed *f);
struct enginefeed_rank enginefeed_rank(const struct enginefeed *f, uint32_t rank);
