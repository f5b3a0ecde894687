/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of rpc: the service Kv on one worker, and one call of it. On the worker's loop. */
#pragma once
#include "base/core/list.h"
#include "base/pb/pb.h"
#include "cognitora/v1/kv.pb-c.h"
#include "io/wire/grpc/grpc.h"
#include "kvcached/feed/feed.h"
#include "kvcached/peers/peers.h"
#include "kvcached/value/value.h"
#include "policy/answer/tracing/tracing.h"

#define RPC_TAG         0x4b444752U
#define RPC_CALL_TAG    0x4b444743U
#define RPC_MAX_CALLS   2048 /* per worker; more fail with RESOURCE_EXHAUSTED */
#define RPC_MAX_MESSAGE ((uint32_t)1024 * 1024 + 4096)
#define RPC_MAX_KEYS    4096 /* per request */
/* bytes that are summed on the loop; more are summed on the pool */
#define RPC_AT_ONCE ((uint64_t)1 << 20)

struct rpc_port {
	uint32_t tag;
	struct kvcached_worker *w;
	struct grpc_server *tcp, *uds; /* NULL: not configured */
	struct cgn_link calls;
	size_t n_calls;
	unsigned draining; /* servers that are not idle yet */
	bool closing;
	char node[256];         /* name of this node */
	cgn_nsec patience;      /* timeout of calls that do not progress */
	struct cgn_timer sweep; /* checks that timeout */
	struct cgn_timer feeds; /* sends changes to watchers */
};

struct rpc_call;
/* The handlers of a method. */
struct rpc_method {
	const ProtobufCMessageDescriptor *request;
	/* Handle a request; |request| is valid during the call. A stream's requests come one by one. On
	 * failure the call ends with |err|. */
	CGN_RC (*on_request)(struct rpc_call *c, const void *request, struct cgn_err *err);
	/* the client sent its last request; may be NULL */
	CGN_RC (*on_end)(struct rpc_call *c, struct cgn_err *err);
	void (*on_drain)(struct rpc_call *c); /* more can be sent; may be NULL */
	/* Give up everything that the call holds. May be NULL. */
	void (*on_gone)(struct rpc_call *c);
	bool many; /* the method takes a stream of requests */
};

struct rpc_call {
	uint32_t tag;
	bool asked, finished;
	bool on_pool; /* a job on the pool has the call, which is freed afterwards */
	bool gone;    /* the client is gone */
	const struct rpc_method *method;
	struct rpc_port *port;
	struct grpc_call *call; /* NULL: the call is gone */
	struct cgn_link link;
	struct cgn_grave grave;
	cgn_nsec progress; /* time of the last progress; 0: not waiting for the client */
	struct block_key key;
	struct value_read *read;
	struct peers_question *question;
	uint64_t held; /* bytes counted by value_hold */
	/* Get */
	struct kvstore_block *block;
	uint64_t at, end;        /* Put: |at| counts the bytes that came */
	uint64_t offset, length; /* as requested */
	bool sound;
	uint32_t worth_ms; /* for value_get */
	uint16_t sites;    /* for value_get */
	/* Put */
	struct kvstore_writer *writer;
	uint64_t checksum;
	bool if_absent, committed;
	struct cgn_err err; /* result of the job on the pool */
	/* the trace that the client's traceparent continues; span 0: none */
	struct tracing_context trace;
	const char *name; /* names the span */
	cgn_nsec began;
	enum cgn_code ended; /* CGN_CANCELLED until the call is answered */
	/* Watch */
	struct feed_cursor feed;
	uint64_t seq;
};

/* ---- rpc.c ---- */
void rpc_send(struct rpc_call *c, const void *message);         /* any generated message */
void rpc_finish(struct rpc_call *c, const struct cgn_err *why); /* NULL: success */
void rpc_reply(struct rpc_call *c, const void *message);        /* sends the only response, and finishes */
void rpc_send_packed(struct rpc_call *c, struct cgn_str packed);
void rpc_moved(struct rpc_call *c); /* records progress */
CGN_RC rpc_hold(struct rpc_call *c, uint64_t bytes, struct cgn_err *err);
/* Run |work| on the pool, then |done| on the loop. */
void rpc_pool(struct rpc_call *c, void (*work)(void *call), void (*done)(void *call));
/* Call first in |done|. Returns false when the client left meanwhile; then |c| is freed. */
bool rpc_pooled(struct rpc_call *c);

/* The other sites that may be asked for blocks of the request's tenant. */
uint16_t rpc_sites(const struct rpc_call *c, const char *tenant);

/* ---- trace.c ---- */
/* Continue the trace of the client's traceparent as the span |name|; without one there is no span. In on_call. */
void rpc_trace_begin(struct rpc_call *c, const char *name);
void rpc_trace_read(struct rpc_call *c); /* after value_get: a fetch from a peer gets a span */
void rpc_trace_end(const struct rpc_call *c);

/* Conversions of messages. |block| NULL: the entry has no model and no tenant. */
CGN_RC rpc_key(const Cognitora__V1__KvKey *k, struct block_key *out, struct cgn_err *err);
struct rpc_entry { /* a KvEntry and its memory */
	Cognitora__V1__KvEntry m;
	Cognitora__V1__KvKey key;
	struct block_key digest;
	char model[BLOCK_MAX_MODEL + 1], tenant[BLOCK_MAX_TENANT + 1];
};
void rpc_entry(struct rpc_entry *e, const struct block_key *k, const struct block_info *info,
	const struct kvstore_block *block);

extern const struct rpc_method rpc_lookup, rpc_batch_lookup, rpc_get, rpc_put, rpc_pin, rpc_promote,
	rpc_remove, rpc_stats, rpc_peers, rpc_watch;
