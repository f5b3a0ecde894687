/* SPDX-License-Identifier: Apache-2.0 */
/* kvcached: the block store of a node as a program. The store is one, for all threads; ports are served by
 * workers, one event loop each. Worker 0 is the one for what there is once only. */
#pragma once
#include <stdatomic.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "io/loop/loop.h"
#include "joint/kvstore/kvstore.h"
#include "joint/svc/svc.h"

struct tls_ctx;
#define KVCACHED_TAG         0x4b564444U
#define KVCACHED_MAX_WORKERS 64

/* One way in: a protocol on one worker. */
struct kvcached_worker;
struct kvcached_port {
	const char *name;
	/* On the main thread, before the worker's loop runs. *out NULL: nothing to do on this worker. */
	CGN_RC (*open)(struct kvcached_worker *w, void **out, struct cgn_err *err);
	/* On the worker's loop, or in its stead once it ended. drain: take nothing new, let what runs end. */
	void (*drain)(void *port);
	bool (*idle)(const void *port); /* nothing runs any more */
	void (*close)(void **take);
	/* SIGHUP, on the worker's loop: certificates again. May be NULL. */
	void (*reload)(void *port);
};
enum kvcached_port_id {
#define PORT(name) KVCACHED_PORT_##name,
#include "kvcached/daemon/ports.def"
#undef PORT
	KVCACHED_PORTS
};
#define PORT(name) extern const struct kvcached_port kvcached_port_##name;
#include "kvcached/daemon/ports.def"
#undef PORT

struct kvcached;
struct kvcached_worker {
	struct kvcached *daemon;
	unsigned index;
	struct cgn_loop *loop;
	bool running;
	void *ports[KVCACHED_PORTS + 1];
	struct cgn_post drain_post, stop_post, reload_post;
	struct cgn_timer idle_timer;
};

struct kvcached {
	uint32_t tag;
	struct svc *svc;
	struct telemetry *telemetry; /* of svc */
	const struct config *cfg;    /* as the daemon was started; what a reload changes is below */
	_Atomic uint32_t max_connections;
	_Atomic cgn_nsec resp_idle_timeout;
	struct kvstore *store;
	struct tls_ctx *tls; /* of gRPC over TCP; NULL: in clear */
	struct kvcached_worker *workers;
	size_t n_workers;
	struct peers_port *peers;
	_Atomic size_t busy;
	_Atomic uint64_t held; /* see value_hold */
	uint64_t held_max;
	cgn_nsec started;
	struct cgn_timer metrics_timer;
};

CGN_RC kvcached_workers_open(struct kvcached *d, struct cgn_err *err);
CGN_RC kvcached_workers_start(struct kvcached *d, struct cgn_err *err);
void kvcached_workers_drain(struct kvcached *d); /* then svc_drained */
void kvcached_workers_reload(struct kvcached *d);
void kvcached_workers_close(struct kvcached *d);

void kvcached_metrics_open(struct kvcached *d); /* the store's figures once a second */
void kvcached_admin_store(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *r);

/* ---- other nodes' stores (peers.c) ---- */
/* From a peer, across loops; as kvpeer_fetch, on |l|. CGN_UNAVAILABLE at once: there are none here. */
struct peers_fetch;
struct kvpeer_ask;
CGN_RC peers_fetch(struct kvcached *d, struct cgn_loop *l, const struct block_key *k,
	const struct kvpeer_ask *ask, kvstore_read_done done, void *user, struct peers_fetch **out,
	struct cgn_err *err);
void peers_fetch_cancel(struct peers_fetch **take); /* NULL-safe; on |l| */
/* Whether one has it, and which; any worker. NULL: none has. */
const char *peers_nearest(struct kvcached *d, const struct block_key *k);
/* Where peers reach this store; empty: they can't. */
const char *peers_quic_address(const struct kvcached *d);
void peers_free(struct kvcached *d); /* after kvcached_workers_close */
/* What is known of peers, written by |write| on their loop, then given to |done| on |l|. NULL: there are none
 * here, or no memory. */
struct kvpeer;
struct peers_question;
typedef void peers_write_fn(const struct kvcached *d, const struct kvpeer *kp, struct cgn_buf *out);
typedef void peers_told_fn(void *user, const struct cgn_buf *text);
#define PEERS_NONE "blocks do not move between nodes here: see kv.transport and [security]"
struct peers_question *peers_ask(struct kvcached *d, struct cgn_loop *l, peers_write_fn *write,
	peers_told_fn *done, void *user);
/* NULL-safe; on |l|, before |done|, which does not come then */
void peers_question_drop(struct peers_question **take);
void peers_admin(void *state, const struct http_head *h, struct cgn_str body, struct svc_admin_reply *r);

/* ---- what all ports share ---- */
/* A value from whichever tier, and from a peer when |worth_ms| is not 0: the one way in for every port. As
 * kvstore_get. |worth_ms|: what not having it costs; a peer is asked only if it will be faster than that
 * (kvfetch_worth). */
#define VALUE_HERE_ONLY     0U
#define VALUE_WORTH_UNKNOWN UINT32_MAX /* nobody knows */
static inline uint32_t value_worth(bool peers, uint32_t budget_ms)
{
	return !peers ? VALUE_HERE_ONLY : budget_ms > 0 ? budget_ms : VALUE_WORTH_UNKNOWN;
}
struct value_read;
CGN_RC value_get(struct kvcached *d, struct cgn_loop *l, const struct block_key *k, uint32_t worth_ms,
	kvstore_read_done done, void *user, struct value_read **out, struct cgn_err *err);
void value_read_cancel(struct value_read **take); /* NULL-safe */
/* As kvstore_lookup; |peers|: also whether a peer has it (BLOCK_REMOTE). */
bool value_lookup(struct kvcached *d, const struct block_key *k, bool peers, struct block_info *out);
/* For kvstore_pin: |for_ms| from now; 0: unpin, UINT64_MAX: until unpinned. */
uint64_t value_pin_until(uint64_t for_ms);

/* Memory of the RAM tier that clients keep from going, by reading slowly, holding leases, or promising bytes:
 * half of its budget at most, in all. False: it would be more. Any thread. */
bool value_hold(struct kvcached *d, uint64_t bytes);
void value_unhold(struct kvcached *d, uint64_t bytes);

/* What the store holds, then what changes, for one watcher; its memory does not grow with how slow that is.
 * One thread. */
struct feed_cursor {
	struct kvstore *store;
	uint64_t at, cursor;
	bool begun, scanned, synced;
};
#define FEED_BATCH 256
struct feed_step {
	struct block_change changes[FEED_BATCH];
	size_t n;
	bool reset;  /* forget what was told before these: the first of all, or changes were lost */
	bool synced; /* with these, everything has been told once: said once a snapshot */
};
/* False: nothing to tell now. */
bool feed_next(struct feed_cursor *f, struct feed_step *out);
