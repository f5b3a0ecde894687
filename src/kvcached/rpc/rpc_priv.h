/* SPDX-License-Identifier: Apache-2.0 */
/* grpc, inside: the service Kv on one worker, and one call of it. Everything on the worker's loop. */
#pragma once
#include "base/core/list.h"
#include "base/pb/pb.h"
#include "cognitora/v1/kv.pb-c.h"
#include "io/grpc/grpc.h"
#include "kvcached/daemon/kvcached.h"

#define RPC_TAG         0x4b444752U
#define RPC_CALL_TAG    0x4b444743U
#define RPC_MAX_CALLS   2048 /* on one worker; more are RESOURCE_EXHAUSTED */
#define RPC_MAX_MESSAGE ((uint32_t)1024 * 1024 + 4096)
#define RPC_MAX_KEYS    4096                /* of a request */
#define RPC_AT_ONCE     ((uint64_t)1 << 20) /* bytes that are summed on the loop; more on the pool */

struct rpc_port {
	uint32_t tag;
	struct kvcached_worker *w;
	struct grpc_server *tcp, *uds; /* NULL: not configured */
	struct cgn_link calls;
	size_t n_calls;
	unsigned draining; /* servers that are not idle yet */
	bool closing;
	char node[256];         /* whose store it is */
	cgn_nsec patience;      /* with calls that take or bring nothing */
	struct cgn_timer sweep; /* of them */
	struct cgn_timer feeds; /* watchers */
};

struct rpc_call;
/* What becomes of a call of each method. */
struct rpc_method {
	const ProtobufCMessageDescriptor *request;
	/* The request, to be read before this returns; a stream's are each told. On failure the call ends
	 * with it. */
	CGN_RC (*on_request)(struct rpc_call *c, const void *request, struct cgn_err *err);
	CGN_RC (*on_end)(struct rpc_call *c, struct cgn_err *err); /* the client said all; NULL: nothing */
	void (*on_drain)(struct rpc_call *c);                      /* more can be sent; NULL: nothing is */
	/* let go of everything; NULL: there is nothing */
	void (*on_gone)(struct rpc_call *c);
	bool many; /* requests */
};

struct rpc_call {
	uint32_t tag;
	bool asked, finished;
	bool on_pool; /* a job has it: it is freed after that */
	bool gone;    /* the client is */
	const struct rpc_method *method;
	struct rpc_port *port;
	struct grpc_call *call; /* NULL: gone */
	struct cgn_link link;
	struct cgn_grave grave;
	cgn_nsec progress; /* when it last got on; 0: nobody waits for the client */
	struct block_key key;
	struct value_read *read;
	struct peers_question *question;
	uint64_t held; /* bytes, of value_hold */
	/* Get */
	struct kvstore_block *block;
	uint64_t at, end;
	uint64_t offset, length; /* as asked */
	bool sound;
	uint32_t worth_ms; /* value_get */
	/* Put */
	struct kvstore_writer *writer;
	uint64_t checksum;
	bool if_absent, committed;
	struct cgn_err err; /* of the pool */
	/* Watch */
	struct feed_cursor feed;
	uint64_t seq;
};

/* ---- grpc.c ---- */
void rpc_send(struct rpc_call *c, const void *message);         /* any generated struct */
void rpc_finish(struct rpc_call *c, const struct cgn_err *why); /* NULL: it went well */
void rpc_reply(struct rpc_call *c, const void *message);        /* the only one, and the end */
void rpc_send_packed(struct rpc_call *c, struct cgn_str packed);
void rpc_moved(struct rpc_call *c); /* it got on */
CGN_RC rpc_hold(struct rpc_call *c, uint64_t bytes, struct cgn_err *err);
/* Run |work| on the pool, then |done| on the loop, unless the client went meanwhile. */
CGN_RC rpc_pool(struct rpc_call *c, void (*work)(void *call), void (*done)(void *call), struct cgn_err *err);
bool rpc_pooled(struct rpc_call *c); /* first in |done|; false: the call is gone, and freed here */

/* Texts and numbers of messages. */
CGN_RC rpc_key(const Cognitora__V1__KvKey *k, struct block_key *out, struct cgn_err *err);
struct rpc_entry { /* memory of a KvEntry */
	Cognitora__V1__KvEntry m;
	Cognitora__V1__KvKey key;
	struct block_key digest;
	char model[BLOCK_MAX_MODEL + 1];
};
void rpc_entry(struct rpc_entry *e, const struct block_key *k, const struct block_info *info,
	struct cgn_str model);

extern const struct rpc_method rpc_lookup, rpc_batch_lookup, rpc_get, rpc_put, rpc_pin, rpc_promote,
	rpc_remove, rpc_stats, rpc_peers, rpc_watch;
