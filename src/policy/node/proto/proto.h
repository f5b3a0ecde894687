/* SPDX-License-Identifier: Apache-2.0 */
/* proto: the wire of cognitora.v1. The messages of every request are written and read by hand, without a copy
 * and without an allocation per field; the others use protobuf-c. Also nodes as proto3 JSON, the format of
 * their keys in etcd. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/arena.h"
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "base/pb/pb.h"
#include "cognitora/v1/agent.pb-c.h"
#include "cognitora/v1/control.pb-c.h"
#include "cognitora/v1/node.pb-c.h"
#include "cognitora/v1/router.pb-c.h"
#include "policy/kv/block/tier.h"
#include "policy/node/breaker/pulse.h"

/* gRPC method paths. */
#define PROTO_AGENT_GENERATE       "/cognitora.v1.Agent/Generate"
#define PROTO_AGENT_WATCH          "/cognitora.v1.Agent/Watch"
#define PROTO_ROUTER_ANNOUNCE      "/cognitora.v1.Router/Announce"
#define PROTO_ROUTER_LEAVE         "/cognitora.v1.Router/Leave"
#define PROTO_ROUTER_STORES        "/cognitora.v1.Router/Stores"
#define PROTO_CONTROL_STATUS       "/cognitora.v1.Control/Status"
#define PROTO_CONTROL_CORDON       "/cognitora.v1.Control/Cordon"
#define PROTO_CONTROL_UNCORDON     "/cognitora.v1.Control/Uncordon"
#define PROTO_CONTROL_DRAIN        "/cognitora.v1.Control/Drain"
#define PROTO_CONTROL_SCALE        "/cognitora.v1.Control/Scale"
#define PROTO_CONTROL_CASCADES     "/cognitora.v1.Control/Cascades"
#define PROTO_CONTROL_PEERS        "/cognitora.v1.Control/Peers"
#define PROTO_CONTROL_EXPLAIN      "/cognitora.v1.Control/Explain"
#define PROTO_CONTROL_SET_POLICY   "/cognitora.v1.Control/SetPolicy"
#define PROTO_CONTROL_CHANGE_MODEL "/cognitora.v1.Control/ChangeModel"
#define PROTO_CONTROL_INVITE       "/cognitora.v1.Control/Invite"
#define PROTO_JOIN                 "/cognitora.v1.Join/Join"
#define PROTO_KV                   "/cognitora.v1.Kv/" /* Followed by the name of a method. */

/* Bounds of a message from a peer; a message beyond them is CGN_INVALID. */
#define PROTO_MAX_HEADERS  128
#define PROTO_MAX_CHAIN    65536
#define PROTO_MAX_ENGINES  64
#define PROTO_MAX_MODELS   4096 /* Per engine. */
#define PROTO_MAX_ADAPTERS 64   /* Per engine: those that operators want. */
#define PROTO_MAX_ID       128  /* Bytes of a node's id. */
#define PROTO_MAX_PLACE    64   /* Bytes of the name of a rack or region. */
#define PROTO_MAX_ADDRESS  256

/* ---- GenerateRequest and GenerateChunk: the hot path ---- */
struct proto_header {
	struct cgn_str name, value;
};

struct proto_facts {
	struct cgn_str model, engine;
	uint32_t blocks_total, blocks_predicted;
	const uint64_t *chain;
	size_t n_chain;
	uint32_t attempt;
	bool stream;
	uint32_t block_tokens; /* Tokens in a block of |chain|; 0: its blocks are of bytes. */
	uint64_t router;       /* The instance of the router; 0: unknown. */
	uint32_t new_tokens;
	uint32_t prompt_us;     /* RouteFacts.prompt_us */
	uint64_t keep_alive;    /* RouteFacts.keep_alive; proto_keep_alive makes it. */
	struct cgn_str tenant;  /* RouteFacts.tenant; empty: the router does not say it. */
	bool once;              /* RouteFacts.once */
	bool keep_bounded;      /* RouteFacts.keep_bounded */
	Cognitora__V1__Leg leg; /* A leg that this build does not know is read as the whole. */
};

/* Return RouteFacts.keep_alive for |ms|; below 0: until the engine's room is needed. */
static inline uint64_t proto_keep_alive(int64_t ms)
{
	return ms < 0 ? 1 : (uint64_t)ms + 2;
}
/* Return true, and the milliseconds in |*out_ms|, if the facts say how long the engine is kept. */
static inline bool proto_keep_alive_ms(uint64_t keep_alive, int64_t *out_ms)
{
	*out_ms = keep_alive < 2 || keep_alive > INT64_MAX ? -1 : (int64_t)(keep_alive - 2);
	return keep_alive != 0;
}
/* Path of a request that only loads an engine on demand, or with keep_alive 0 unloads it. The agent answers it, with 200. */
#define PROTO_LOAD_PATH "/cognitora/load"
/* Field of an answer of 503 that says why an agent refuses a request that its engine never got: "load". */
#define PROTO_REFUSED "x-cgn-refused"

/* A part of a body that is sent as other bytes. */
struct proto_swap {
	size_t at, n;      /* Place of the part in the body. */
	struct cgn_str by; /* p == NULL: nothing is replaced. */
};
struct proto_generate {
	struct cgn_str request_id, method, path;
	const struct proto_header *headers;
	size_t n_headers;
	struct proto_facts facts;
	struct cgn_str body;
	struct proto_swap
		swap; /* Written messages only: a message that was read has the body as the node got it. */
};

/* Append everything of |g| up to the body's bytes, including the body's tag and length: the message consists
 * of the prefix and the pieces of the body for grpc_send. Only lengths of the body are read. Errors are the
 * buffer's. */
void proto_generate_prefix(const struct proto_generate *g, struct cgn_buf *out);
/* Write the pieces of the body as it is sent; return how many. Empty pieces are left out. */
#define PROTO_BODY_PIECES 3
size_t proto_generate_body(const struct proto_generate *g, struct cgn_str out[PROTO_BODY_PIECES]);
/* Strings of |out| borrow from |msg|; the arrays of headers and digests are in |a|. CGN_INVALID (truncated,
 * over a bound, a method, path or header that would break an HTTP head: control characters, spaces in names)
 * or CGN_NO_MEMORY; |out| is then not to be used. Unknown fields are skipped, and so are known ones of
 * another wire type. */
CGN_RC proto_generate_read(struct cgn_str msg, struct cgn_arena *a, struct proto_generate *out,
	struct cgn_err *err);

/* Write the bytes that precede |data_bytes| bytes of an engine's answer: the message consists of the pieces
 * {lead, data}. Returns the lead's length. */
#define PROTO_CHUNK_LEAD 11
size_t proto_chunk_lead(uint8_t lead[PROTO_CHUNK_LEAD], size_t data_bytes);
void proto_chunk_head(int status, const struct proto_header *headers, size_t n, struct cgn_str engine,
	struct cgn_buf *out);

enum proto_chunk_kind {
	PROTO_CHUNK_EMPTY /* Neither head nor data: ignore. */,
	PROTO_CHUNK_HEAD,
	PROTO_CHUNK_DATA
};
struct proto_chunk {
	enum proto_chunk_kind kind;
	int status;                         /* HEAD: 100..599 */
	const struct proto_header *headers; /* HEAD; in the arena */
	size_t n_headers;
	struct cgn_str engine; /* HEAD; borrowed */
	struct cgn_str data;   /* DATA; borrowed */
};
/* As proto_generate_read. A DATA chunk never touches the arena. */
CGN_RC proto_chunk_read(struct cgn_str msg, struct cgn_arena *a, struct proto_chunk *out,
	struct cgn_err *err);

/* ---- everything else: pb_pack, pb_unpack and pb_free of base/pb/pb.h ---- */
struct proto_residency {
	bool reset;
	const uint32_t *ranges; /* The ranges that |reset| concerns; none: all. */
	size_t n_ranges;
	const uint64_t *blocks;
	const uint8_t *tiers; /* A mask for each block; NULL: all BLOCK_GPU. */
	size_t n_blocks;
	Cognitora__V1__ResidencySource source;
	uint64_t stale_ms;
};
struct proto_check {
	const uint64_t *sums; /* BLOCK_RANGES of them. */
	uint64_t blocks;
};
/* An event of Agent.Watch; NULL fields are omitted. Lists of digests are copied once. */
struct proto_event {
	uint64_t seq, sent_unix_ms;
	uint32_t beat_ms; /* 0: no promise. */
	const Cognitora__V1__Node *node;
	const Cognitora__V1__Load *load;
	const struct proto_residency *residency;
	const struct proto_check *check;
	const Cognitora__V1__Energy *energy;
};
void proto_watch_event(const struct proto_event *e, struct cgn_buf *out);
/* Check an agent's report on its blocks: as many tiers as blocks or none, existing ranges and tiers, sums of
 * all ranges or none. Both may be NULL. CGN_INVALID with the field. Unknown bits of a tier are an error. */
CGN_RC proto_residency_check(const Cognitora__V1__Residency *r, const Cognitora__V1__ResidencyCheck *check,
	struct cgn_err *err);

/* ---- nodes ---- */
/* Check the limits that a router requires of an agent: an id, an address with a port, bounded lists, UTF-8.
 * CGN_INVALID with the field. */
CGN_RC proto_node_check(const Cognitora__V1__Node *n, struct cgn_err *err);
/* Check a block store of node |id|: an address with a port, names of bounded length. |id| is for the message
 * only. */
CGN_RC proto_store_check(const char *id, const Cognitora__V1__KvStore *kv, struct cgn_err *err);
/* 1 to PROTO_MAX_ID bytes, visible ASCII, no '/' (it is the last part of a key). */
bool proto_node_id_ok(struct cgn_str id);
/* Return a deep copy, or NULL when out of memory. Free it with proto_node_free. */
Cognitora__V1__Node *proto_node_dup(const Cognitora__V1__Node *n);
bool proto_node_equal(const Cognitora__V1__Node *a, const Cognitora__V1__Node *b);
void proto_node_free(Cognitora__V1__Node **take);
/* Write and read the signs of life of a node's engines. */
void proto_load_witness(Cognitora__V1__Load *l, const struct pulse_witness *w);
struct pulse_witness proto_witness_of(const Cognitora__V1__Load *l);
/* Write and read a node as proto3 JSON (base/pb/pb_json.h). Reading ends with proto_node_check. */
void proto_node_to_json(const Cognitora__V1__Node *n, struct cgn_buf *out);
CGN_RC proto_node_from_json(struct cgn_str json, Cognitora__V1__Node **out, struct cgn_err *err);
