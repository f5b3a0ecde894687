/* SPDX-License-Identifier: Apache-2.0 */
/* kvcached: the block store of a node as a program. The store is one, for all threads; ports are served by workers, one event loop each.
 * Worker 0 is the one for what there is once only. */
#pragma once
#include <stdatomic.h>

#include "base/core/err.h"
#include "io/loop/loop.h"
#include "joint/kvstore/kvstore.h"
#include "joint/svc/svc.h"

struct tls_ctx;
#define KVD_TAG         0x4b564444U
#define KVD_MAX_WORKERS 64

/* One way in: a protocol on one worker. */
struct kvd_worker;
struct kvd_port {
	const char *name;
	/* On the main thread, before the worker's loop runs. *out NULL: nothing to do on this worker. */
	CGN_RC (*open)(struct kvd_worker *w, void **out, struct cgn_err *err);
	/* On the worker's loop, or in its stead once it ended. drain: take nothing new, let what runs end. */
	void (*drain)(void *port);
	bool (*idle)(const void *port); /* nothing runs any more */
	void (*close)(void **take);
	/* SIGHUP, on the worker's loop: certificates again. May be NULL. */
	void (*reload)(void *port);
};
enum kvd_port_id {
#define PORT(name) KVD_PORT_##name,
#include "kvcached/ports.def"
#undef PORT
	KVD_PORTS
};
#define PORT(name) extern const struct kvd_port kvd_port_##name;
#include "kvcached/ports.def"
#undef PORT

struct kvcached;
struct kvd_worker {
	struct kvcached *daemon;
	unsigned index;
	struct cgn_loop *loop;
	bool running;
	void *ports[KVD_PORTS + 1];
	struct cgn_post drain_post, stop_post, reload_post;
	struct cgn_timer idle_timer;
};

struct kvcached {
	uint32_t tag;
	struct svc *svc;
	const struct config *cfg;
	struct kvstore *store;
	struct tls_ctx *tls; /* of gRPC over TCP; NULL: in clear */
	struct kvd_worker *workers;
	size_t n_workers;
	_Atomic size_t busy;
	cgn_nsec started;
	struct cgn_timer metrics_timer;
};

CGN_RC kvd_workers_open(struct kvcached *d, struct cgn_err *err);
CGN_RC kvd_workers_start(struct kvcached *d, struct cgn_err *err);
void kvd_workers_drain(struct kvcached *d); /* then svc_drained */
void kvd_workers_reload(struct kvcached *d);
void kvd_workers_close(struct kvcached *d);

void kvd_metrics_open(struct kvcached *d); /* the store's figures once a second */
void kvd_admin_store(void *state, const struct http_head *h, struct cgn_str body, struct svc_admin_reply *r);
