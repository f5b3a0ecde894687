/* SPDX-License-Identifier: Apache-2.0 */
/* state, inside: the roster of what is known by id, and what a backend is, for routers and for agents. */
#pragma once
#include "base/core/list.h"
#include "io/etcd/etcd.h"
#include "io/grpc/grpc.h"
#include "io/loop/backoff.h"
#include "io/tls/tls.h"
#include "joint/state/state.h"
#include "policy/config/config.h"

/* ---- roster.c: entries by id ---- */
#define ROSTER_BUCKETS 256
struct roster_entry {
	struct cgn_link link;
	Cognitora__V1__Node *node; /* nodes; NULL in the roster of cordons */
	cgn_nsec lease_end;        /* embedded */
	bool marked;               /* not confirmed by the snapshot that is being read */
	char id[];
};
struct roster {
	struct cgn_link buckets[ROSTER_BUCKETS];
	size_t n;
};
void roster_init(struct roster *r);
void roster_fini(struct roster *r);
struct roster_entry *roster_find(const struct roster *r, const char *id); /* NULL */
struct roster_entry *roster_add(struct roster *r, const char *id);        /* a new one; NULL: no memory */
void roster_drop(struct roster *r, struct roster_entry *e);
/* |fn| may drop the entry it was given, and no other. */
void roster_each(struct roster *r, void (*fn)(void *arg, struct roster_entry *e), void *arg);

/* ---- routers ---- */
#define STATE_WATCH_TAG 0x57a7e001U
struct state_watch;

/* What an operator asked: a cordon (|id|), or another policy document (|text|). */
struct state_request {
	struct cgn_link link;
	struct state_watch *s;
	bool on, ready; /* ready: |err| stands, done is due */
	char *text;     /* owned; NULL: none */
	size_t text_bytes;
	void (*done)(void *user, const struct cgn_err *err);
	void *user;
	struct etcd_op *op;
	struct cgn_err err;
	char id[PROTO_MAX_ID + 1];
};

struct state_backend {
	const char *where; /* for people */
	CGN_RC (*open)(struct state_watch *s, const struct config *cfg, struct cgn_err *err);
	void (*begin)(struct state_watch *s);                            /* first turn: tell what is known */
	void (*close)(struct state_watch *s);                            /* also after a half-done open */
	void (*cordon)(struct state_watch *s, struct state_request *rq); /* leads to state_request_ready */
	/* as well; |on|: put |text|, else remove it */
	void (*policy)(struct state_watch *s, struct state_request *rq);
};
extern const struct state_backend state_backend_embedded, state_backend_static, state_backend_etcd;

struct state_watch {
	uint32_t tag;
	bool connected, told, embedded;
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	const struct state_backend *backend;
	const struct state_watch_ops *ops;
	void *user;
	struct roster nodes, cordons;
	struct cgn_link requests;
	struct cgn_hook turn;
	struct cgn_timer timer; /* the first turn; embedded: the next lease that ends */
	bool begun;
	char cluster[72];
	cgn_nsec lease;
	struct cgn_buf policy; /* the document, as it was written; empty: there is none */
	bool policy_marked;    /* not confirmed by the snapshot that is being read */
	char *policy_where;    /* its key or its file */
	/* embedded and static */
	char *state_dir, *cordon_file;
	/* etcd */
	struct etcd *etcd;
	struct etcd_watch *etcd_watch;
	char prefix[96];
	int64_t seen_revision;
};

/* What a backend learned. They change the rosters and tell the owner when something changed. */
CGN_RC state_node_seen(struct state_watch *s, const Cognitora__V1__Node *node, struct roster_entry **out,
	struct cgn_err *err);
void state_node_gone(struct state_watch *s, struct roster_entry *e);
void state_cordon_seen(struct state_watch *s, const char *id, bool on);
void state_policy_seen(struct state_watch *s, struct cgn_str text); /* empty: it is gone */
void state_connected(struct state_watch *s, bool connected, const char *why);
/* |rq|->err stands: done comes on the turn's end. */
void state_request_ready(struct state_watch *s, struct state_request *rq);
/* cordons.c: the file of cordons, for backends without etcd. */
CGN_RC cordons_open(struct state_watch *s, const struct config *cfg,
	struct cgn_err *err); /* reads; warns when it could not be written */
void cordons_change(struct state_watch *s, struct state_request *rq);
void cordons_close(struct state_watch *s);
/* document.c: the file of the policy document, for them. After cordons_open, which makes their folder. */
CGN_RC document_open(struct state_watch *s, struct cgn_err *err);
void document_change(struct state_watch *s, struct state_request *rq);
CGN_RC state_file_write(const struct state_watch *s, const char *file, struct cgn_str text,
	struct cgn_err *err);
CGN_RC state_etcd_new(struct cgn_loop *l, const struct config *cfg, struct etcd **out, struct cgn_err *err);
CGN_RC state_etcd_prefix(const struct config *cfg, char *out, size_t cap, struct cgn_err *err);

/* ---- agents ---- */
#define STATE_ANNOUNCE_TAG 0x57a7e002U
struct announce_backend {
	CGN_RC (*open)(struct state_announce *a, const struct config *cfg, struct cgn_err *err);
	void (*send)(struct state_announce *a); /* the node is new or changed, or the timer fired */
	void (*leave)(struct state_announce
			*a); /* leads to announce_left; not called when nothing was ever announced */
	void (*close)(struct state_announce *a); /* frees; also after a half-done open */
};
extern const struct announce_backend announce_embedded, announce_static, announce_etcd;

struct state_announce {
	uint32_t tag;
	bool connected, told, changed, leaving, in_flight;
	bool ended; /* the backend is being freed */
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	const struct announce_backend *backend;
	const struct state_announce_ops *ops;
	void *user;
	Cognitora__V1__Node *node; /* NULL before the first update */
	struct cgn_hook turn;
	struct cgn_timer timer; /* the next send; when leaving: the end of patience */
	struct cgn_backoff backoff;
	cgn_nsec heartbeat, lease;
	char cluster[72];
	void (*closed)(void *arg);
	void *closed_arg;
	/* embedded */
	struct tls_ctx *tls;
	struct grpc_channel *channel;
	struct grpc_call *alive; /* Health.Watch at the router: ends when it goes */
	struct cgn_backoff alive_backoff;
	/* etcd */
	struct etcd *etcd;
	struct etcd_lease *etcd_lease;
	struct etcd_op *op;
	char key[96 + PROTO_MAX_ID]; /* the prefix, then nodes/<id> */
	size_t prefix_bytes;
};
void announce_ok(struct state_announce *a);                                 /* the registration stands */
void announce_trouble(struct state_announce *a, const struct cgn_err *why); /* says so, once per outage */
void announce_left(struct state_announce *a);
