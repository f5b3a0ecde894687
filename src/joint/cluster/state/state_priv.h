/* SPDX-License-Identifier: Apache-2.0 */
/* state, inside: a backend of routers. It has private state (|own|) behind its ops, as those of agents (announce_priv.h)
 * and of block stores (stores_priv.h) have. */
#pragma once
#include "base/core/buf.h"
#include "base/core/list.h"
#include "joint/cluster/state/documents_priv.h"
#include "joint/cluster/state/roster_priv.h"
#include "joint/cluster/state/state.h"
#include "joint/cluster/statefile/statefile.h"
#include "joint/report/telemetry/telemetry.h"
#include "policy/config/config.h"

struct etcd;

/* Whether the source of membership answers: etcd, or the router. */
struct state_source {
	bool known, answers; /* |known|: |answers| was set at least once */
};
/* Take the news and show them in cgn_state_connected{what}. Returns false if nothing changed. */
static inline bool state_source_changed(struct state_source *s, bool answers, struct telemetry *t,
	const char *what)
{
	if (s->known && s->answers == answers)
		return false;
	*s = (struct state_source){.known = true, .answers = answers};
	metric_set(METRIC_OF(t, STATE_CONNECTED, what), answers);
	return true;
}

#define STATE_WATCH_TAG 0x57a7e001U

/* A request of an operator: a cordon (|id|), or another |document| (|text|). */
struct state_request {
	struct cgn_link link;
	struct state_watch *s;
	bool on; /* cordon: set it, else lift it; document: put |text|, else remove it */
	enum state_document document;
	bool ready;   /* |err| stands, |done| is due */
	bool writing; /* a cordon: the write under way has it */
	char *text;   /* owned; NULL: none */
	size_t text_bytes;
	uint64_t base; /* The version of the document from which |text| was computed. */
	void (*done)(void *user, const struct cgn_err *err);
	void *user;
	void *call; /* the backend's call under way; NULL: none */
	struct cgn_err err;
	char id[PROTO_MAX_ID + 1];
};

struct state_backend {
	const char *where; /* where membership is kept, for messages */
	CGN_RC (*open)(struct state_watch *s, const struct config *cfg,
		struct cgn_err *err);         /* sets s->own */
	void (*begin)(struct state_watch *s); /* first turn: report the known members */
	void (*close)(struct state_watch *s); /* frees s->own; also after a failed open */
	void (*cordon)(struct state_watch *s, struct state_request *rq);  /* leads to state_request_ready */
	void (*put)(struct state_watch *s, struct state_request *rq);     /* leads to state_request_ready */
	void (*drop)(struct state_request *rq);                           /* frees rq->call; NULL: no calls */
	CGN_RC (*reload_tls)(struct state_watch *s, struct cgn_err *err); /* NULL: no certificates */
	/* A node announced itself: grant it a lease. NULL: nodes do not register with this router. */
	void (*renew)(struct state_watch *s, struct roster_entry *e, uint64_t *lease_ms);
};
extern const struct state_backend state_backend_embedded, state_backend_static, state_backend_etcd,
	state_backend_kubernetes;

/* place.c: CLUSTER.lock in cluster.state_dir. Of several routers of a cluster that share the folder, the one that holds
 * the lock writes the files that are the cluster's: cordons, documents and the last membership. */
struct state_place {
	int fd;     /* -1: not held */
	char *path; /* owned */
};
void state_place_open(struct state_place *p, const struct config *cfg);
void state_place_close(struct state_place *p);
/* May this router write? Try to take the lock if it is not held. False: |err| names the file and the process that holds
 * it. True without a lock where there can be none: a folder that is missing or read-only, a file system without locks. */
bool state_place_hold(struct state_place *p, struct cgn_err *err);

/* The file of the last membership. */
struct state_members {
	struct state_watch *s; /* NULL: not opened */
	struct statefile *file;
	bool nodes_only; /* cordons and documents have files of their own */
	bool recalled;   /* the file was read */
	struct cgn_timer timer;
};

struct state_watch {
	uint32_t tag;
	struct state_source source;
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	const struct state_backend *backend;
	void *own; /* the backend's */
	const struct state_watch_ops *ops;
	void *user;
	struct roster nodes, cordons;
	enum state_knowledge knowledge;
	size_t n_recalled; /* nodes with |recalled| */
	struct state_members members;
	struct state_place place;
	struct cgn_link requests;
	struct cgn_hook turn;
	struct cgn_timer first_turn;
	char cluster[72];
	struct state_text documents[STATE_DOCUMENTS];
};

/* For backends: reports of the membership. Change the rosters and tell the owner of a change. */
CGN_RC state_node_seen(struct state_watch *s, const Cognitora__V1__Node *node, struct roster_entry **out,
	struct cgn_err *err);
void state_node_gone(struct state_watch *s, struct roster_entry *e);
/* Report the nodes gone whose leases are over. Returns when the next lease ends, from now: renewals only move ends later, so
 * that a timer may wait as long. 0: no node has a lease. */
cgn_nsec state_leases_check(struct state_watch *s);
void state_cordon_seen(struct state_watch *s, const char *id, bool on);
void state_connected(struct state_watch *s, bool connected, const char *why);
void state_knows(struct state_watch *s, enum state_knowledge k);
/* A snapshot of all nodes, cordons and documents begins; at its end, what it did not have is gone. */
void state_snapshot_begin(struct state_watch *s);
void state_snapshot_end(struct state_watch *s);
/* The same for nodes alone, and for cordons and documents alone; the knowledge stays. */
void state_nodes_begin(struct state_watch *s);
void state_nodes_end(struct state_watch *s);
void state_written_begin(struct state_watch *s);
void state_written_end(struct state_watch *s);
/* |rq|->err stands: call |done| at the end of the turn. */
void state_request_ready(struct state_watch *s, struct state_request *rq);

/* ---- members.c: the last membership in cluster.state_dir ---- */
void state_members_open(struct state_watch *s, const struct config *cfg, bool nodes_only);
/* Write the file if it is due. Safe if it was not opened. */
void state_members_close(struct state_watch *s);
/* Use the file, unless the membership was heard. Once; later calls do nothing. A file that cannot be read is logged
 * and ignored. */
void state_members_recall(struct state_watch *s);
/* A node, a cordon or the policy changed: the file is written soon. */
void state_members_changed(struct state_watch *s);

/* ---- for all backends in etcd ---- */
CGN_RC state_etcd_new(struct cgn_loop *l, const struct config *cfg, struct etcd **out, struct cgn_err *err);
CGN_RC state_etcd_prefix(const struct config *cfg, char *out, size_t cap, struct cgn_err *err);
/* Is the membership kept by a server that all programs ask: etcd or Kubernetes? */
static inline bool state_is_shared(const struct config *cfg)
{
	return cfg->cluster.state_backend == STATE_ETCD || cfg->cluster.state_backend == STATE_KUBERNETES;
}
CGN_RC state_cluster_check(const struct config *cfg, struct cgn_err *err); /* cluster.name */
/* Fail with CGN_CONFLICT: another agent has the id. */
CGN_RC state_id_taken(const char *id, const char *address, struct cgn_err *err);
