/* SPDX-License-Identifier: Apache-2.0 */
/* kvcached: the block store of a node as a program. All threads share one store. Workers, one event loop
 * each, serve the ports. Worker 0 also runs what exists only once. */
/* daemon, the room: the block store of a node as a program. */
#pragma once
#include <stdatomic.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "cognitora/v1/kv.pb-c.h"
#include "io/os/loop/loop.h"
#include "joint/daemon/svc/svc.h"
#include "joint/kv/kvstore/kvstore.h"
#include "policy/kv/kvsite/kvsite.h"

struct tls_ctx;
#define KVCACHED_TAG         0x4b564444U
#define KVCACHED_MAX_WORKERS 64

/* A port: one protocol on one worker. */
struct kvcached_worker;
struct kvcached_port {
	const char *name;
	/* Open the port. On the main thread, before the worker's loop runs. |*out| NULL: no such port on this
	 * worker. */
	CGN_RC (*open)(struct kvcached_worker *w, void **out, struct cgn_err *err);
	/* On the worker's loop, or after its end on the main thread. drain: accept nothing new, let the rest
	 * end. */
	void (*drain)(void *port);
	bool (*idle)(const void *port); /* nothing is under way */
	void (*close)(void **take);
	/* On SIGHUP, on the worker's loop: read the certificates again. May be NULL. */
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

/* For --check: read the password of the Redis port, and refuse a port that others reach without one. resp/port.c */
CGN_RC resp_check(const struct config *cfg, struct cgn_err *err);

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
	struct telemetry *telemetry; /* borrowed from svc */
	struct tracing *tracing;     /* borrowed from svc; NULL: off */
	/* from the start of the daemon; members below have what a reload changes */
	const struct config *cfg;
	_Atomic uint32_t max_connections;
	_Atomic cgn_nsec resp_idle_timeout;
	struct kvstore *store;
	struct tls_ctx *tls; /* for gRPC over TCP; NULL: no TLS */
	struct kvcached_worker *workers;
	size_t n_workers;
	struct peers_port *peers;
	struct kvsites *sites;  /* NULL: no kv_sites are configured */
	char grpc_address[256]; /* where other machines reach kv.listen; empty: they cannot */
	_Atomic size_t busy;
	_Atomic uint64_t held; /* counted by value_hold */
	uint64_t held_max;
	cgn_nsec started;
	struct cgn_timer metrics_timer;
};

CGN_RC kvcached_workers_open(struct kvcached *d, struct cgn_err *err);
CGN_RC kvcached_workers_start(struct kvcached *d, struct cgn_err *err);
void kvcached_workers_drain(struct kvcached *d); /* calls svc_drained at the end */
void kvcached_workers_reload(struct kvcached *d);
void kvcached_workers_close(struct kvcached *d);

void kvcached_metrics_open(struct kvcached *d); /* sets the metrics of the store once a second */
/* The documents of the admin port. main.c */
enum kvcached_document {
#define DOCUMENT(fill, path, action, Type, type, select, help) KVCACHED_##fill,
#include "kvcached/daemon/documents.def"
#undef DOCUMENT
	KVCACHED_DOCUMENTS
};
extern const struct svc_admin_route kvcached_documents[KVCACHED_DOCUMENTS];
/* Fill the state of the store, for Stats and /store. Any worker. */
void kvcached_store_fill(const struct kvcached *d, struct pb_tree *t, Cognitora__V1__KvStatsResponse *to);
