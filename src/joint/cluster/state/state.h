/* SPDX-License-Identifier: Apache-2.0 */
/* state: membership of the cluster, cordons, the routing policy and the wanted models, for routers (watch), agents (announce) and
 * block stores. Four backends behind one interface:
 *
 *   embedded  agents announce themselves to the one router over gRPC; leases are timers in that router; cordons
 *             and the policy are files in cluster.state_dir
 *   etcd      /cognitora/<cluster>/nodes/<id> under a lease, cordon/<id>, routing/policy; routers watch from a
 *             pinned revision and reconnect
 *   kubernetes  Leases of a namespace, which agents renew; cordons and documents are in a Secret (kube_priv.h)
 *   static    cluster.nodes; cordons and the policy are files in cluster.state_dir
 *
 * A router keeps the last membership in cluster.state_dir (etcd, kubernetes, embedded). After a start it is used until the source
 * has told the present one: for etcd as soon as etcd cannot be reached, or has not answered in a second; embedded at
 * once, each node for a lease.
 *
 * The metric cgn_state_connected says whether the backend's source answers, cgn_state_stale whether the membership
 * is that of an earlier run. Objects belong to their loop's
 * thread. Callbacks are never made inline: the first ones come on the loop's next turn. Exception:
 * state_announce_received and state_leave_received call on_node and on_gone before they return. Do not close
 * an object inside its own callbacks. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"
#include "io/os/loop/loop.h"
#include "policy/node/proto/proto.h"

struct config;
struct telemetry;
struct tls_ctx;

/* Make the TLS context between the cluster's programs, as [security] says. *out is NULL when [security] asks for
 * no TLS: the connection is then in clear. Server: TLS when cert_file is set; clients need a certificate of
 * ca_file when require_mtls is set. Client: TLS when ca_file is set, with our own certificate if there is one.
 * Both offer ALPN h2. CGN_TLS: a certificate or key cannot be used. */
CGN_RC state_tls_server(const struct config *cfg, struct tls_ctx **out, struct cgn_err *err);
CGN_RC state_tls_client(const struct config *cfg, struct tls_ctx **out, struct cgn_err *err);
/* As state_tls_client, for connections to a router: a server whose certificate has roles of a cluster, and not that of a
 * router, is refused: host names of a certificate are what its inviter says. */
CGN_RC state_tls_to_router(const struct config *cfg, struct tls_ctx **out, struct cgn_err *err);

/* ---- routers ---- */
enum state_knowledge {
	STATE_UNHEARD, /* Nothing was heard yet: nodes may exist that are not known. */
	STATE_STALE,   /* The last membership of an earlier run is used; what came later is not known yet. */
	STATE_HEARD,   /* The source told the membership. */
};
struct state_watch;
struct state_watch_ops {
	/* |node| is new, or it changed; borrowed. Static: called once per address of cluster.nodes with a
	 * placeholder, whose id and address are that address and which has no engines: the real Node comes
	 * from the agent's Agent.Watch. */
	void (*on_node)(void *user, const Cognitora__V1__Node *node);
	/* The node left or its lease ended. Never called while etcd is away: the last known membership
	 * stays. */
	void (*on_gone)(void *user, const char *id);
	/* A cordon was set or lifted; cordons known at the start come as (id, true). May come before on_node,
	 * and for ids that no node has: a static node may be cordoned by its real id or by its address. */
	void (*on_cordon)(void *user, const char *id, bool cordoned);
	/* Called once at the start and at each change. etcd: reachable or not, with the reason; other backends:
	 * true. May be NULL. */
	void (*on_connected)(void *user, bool connected, const char *why);
	/* The policy document (policy/route/routing/document.h) was written by any router or person. |text|: the
	 * document, not validated; empty: it was removed. |where|: its key or file, for messages. Called at
	 * each change, and once at the start if there is a document. May be NULL. */
	void (*on_policy)(void *user, struct cgn_str text, const char *where);
	/* The document of wanted models (policy/node/wanted) was written; as on_policy, but never removed. May be NULL. */
	void (*on_models)(void *user, struct cgn_str text, const char *where);
	/* The document of invites (policy/who/invite) was written or removed; as on_policy. May be NULL. */
	void (*on_invites)(void *user, struct cgn_str text, const char *where);
	/* Embedded: whether the node's agent answers. One that does not loses the id before its lease ends, so that a node may
	 * come back at another address. NULL: the lease alone decides. */
	bool (*answers)(void *user, const char *id);
	/* The knowledge of the membership changed. May be NULL. */
	void (*on_knowledge)(void *user, enum state_knowledge knowledge);
};
/* Watch the cluster. |cfg| is needed during the call only; |t|, |ops| and |user| until the watch is closed.
 * An unreachable etcd does not count as a failure. CGN_INVALID: the configuration lacks something; CGN_TLS:
 * certificates. */
CGN_RC state_watch_open(struct cgn_loop *l, const struct config *cfg, struct telemetry *t,
	const struct state_watch_ops *ops, void *user, struct state_watch **out, struct cgn_err *err);
/* Requests under way are done with CGN_CANCELLED before this returns. */
void state_watch_close(struct state_watch **take);
bool state_watch_cordoned(const struct state_watch *s, const char *id);
/* Read the certificates again (SIGHUP). */
CGN_RC state_watch_reload_tls(struct state_watch *s, struct cgn_err *err);
/* Persist a cordon of node |id| or lift it; on_cordon comes before |done|. |done| never comes inline; its
 * err->code is CGN_FINE, CGN_STORAGE (state_dir cannot be written) or CGN_UNAVAILABLE (etcd). Fails at once
 * with CGN_INVALID: |id| is not a valid id. A cordon that stands already is fine. */
CGN_RC state_cordon(struct state_watch *s, const char *id, bool cordoned,
	void (*done)(void *user, const struct cgn_err *err), void *user, struct cgn_err *err);
/* Persist another policy document (empty: remove it); on_policy comes before |done|. |done|: as state_cordon.
 * Fails at once with CGN_TOO_LARGE. */
#define STATE_MAX_POLICY ((size_t)64 * 1024)
CGN_RC state_policy_put(struct state_watch *s, struct cgn_str text,
	void (*done)(void *user, const struct cgn_err *err), void *user, struct cgn_err *err);
const char *state_policy_where(const struct state_watch *s); /* key or file of the policy document */
/* Persist another document of wanted models in place of the last one that on_models told; as state_policy_put. |done|
 * also gets CGN_CONFLICT: another router wrote one meanwhile, which on_models has told. */
#define STATE_MAX_MODELS ((size_t)256 * 1024)
CGN_RC state_models_put(struct state_watch *s, struct cgn_str text,
	void (*done)(void *user, const struct cgn_err *err), void *user, struct cgn_err *err);
/* The same for the document of invites. Without etcd its file has mode 0600. */
#define STATE_MAX_INVITES ((size_t)256 * 1024)
CGN_RC state_invites_put(struct state_watch *s, struct cgn_str text,
	void (*done)(void *user, const struct cgn_err *err), void *user, struct cgn_err *err);
const char *state_models_where(const struct state_watch *s);
/* Embedded: the router received an announcement, or a node's leave. *lease_ms is for the answer. CGN_INVALID: no
 * valid node, or a node of another cluster; CGN_CONFLICT: an agent at another address has the id, and its lease did
 * not end; CGN_UNSUPPORTED: membership is not embedded (the message says where
 * it is kept); CGN_OVERLOADED: over STATE_MAX_NODES. */
#define STATE_MAX_NODES 4096
CGN_RC state_announce_received(struct state_watch *s, const Cognitora__V1__AnnounceRequest *rq,
	uint64_t *lease_ms, struct cgn_err *err);
/* An unknown id is fine. */
CGN_RC state_leave_received(struct state_watch *s, const char *id, struct cgn_err *err);

/* ---- the leader of the routers ---- */
/* With etcd the router leads whose lease the key autoscaler/leader has (the value is |id|), with Kubernetes the holder of
 * the Lease CLUSTER.leader; another one follows when the
 * lease ends. With other backends each router leads, and there is to be one. */
struct state_leader;
/* |cfg| is needed during the call only. Errors: as state_watch_open. An unreachable etcd does not count as a
 * failure. */
CGN_RC state_leader_open(struct cgn_loop *loop, const struct config *cfg, const char *id,
	struct state_leader **out, struct cgn_err *err);
/* False: another router leads, or none that is known. Never true in two routers at once while their clocks run equally
 * fast. */
bool state_leader_is(const struct state_leader *l);
void state_leader_close(struct state_leader **take);

/* ---- agents ---- */
struct state_announce;
struct state_announce_ops {
	/* The registration stands, or it cannot be renewed for the reason |why|. Changes only. The room logs it
	 * too, once per outage. May be NULL. */
	void (*on_connected)(void *user, bool connected, const char *why);
};
/* Start the registration; nothing is announced before the first update. Arguments and errors: as
 * state_watch_open. Static: does nothing, connected at once. */
CGN_RC state_announce_open(struct cgn_loop *l, const struct config *cfg, struct telemetry *t,
	const struct state_announce_ops *ops, void *user, struct state_announce **out, struct cgn_err *err);
/* Register |node| (copied). Sent on the next turn if it differs from the last one (embedded: also every
 * agent.heartbeat); retried without end, with backoff. */
void state_announce_update(struct state_announce *a, const Cognitora__V1__Node *node);
CGN_RC state_announce_reload_tls(struct state_announce *a, struct cgn_err *err);
/* Leave (embedded) or revoke the lease (etcd), then call |done|: never inline, at most 2 s later. Call once; later
 * updates are ignored. |a| stays the caller's. */
void state_announce_leave(struct state_announce *a, void (*done)(void *arg), void *arg);
/* Free at once and call back no more. Without a completed leave, the node stays registered until its lease
 * ends. */
void state_announce_close(struct state_announce **take);

/* ---- block stores ---- */
/* The block stores of the cluster's nodes, for a store that fetches from them. etcd: the stores of nodes that are
 * neither cordoned nor draining. Embedded and static: the answer of the router at cluster.router
 * (Router.Stores), asked every agent.heartbeat and sooner while it changes. While etcd or the router is away,
 * the last known stores stay; logged once per outage. At most STATE_MAX_NODES. */
struct state_stores;
struct state_store {
	const char *node_id, *address, *rack, *region; /* borrowed; rack, region: empty if unknown */
};
struct state_stores_ops {
	void (*on_store)(void *user, const struct state_store *s); /* new, or changed */
	void (*on_gone)(void *user, const char *node_id);
};
/* Arguments and errors: as state_watch_open. */
CGN_RC state_stores_open(struct cgn_loop *l, const struct config *cfg, struct telemetry *t,
	const struct state_stores_ops *ops, void *user, struct state_stores **out, struct cgn_err *err);
void state_stores_close(struct state_stores **take);
CGN_RC state_stores_reload_tls(struct state_stores *s, struct cgn_err *err);
/* Write the address under which others reach a server: |advertise| if it is not NULL, else the host of |listen|,
 * else the source address of the route to the router or etcd; with |port|. CGN_UNAVAILABLE: there is no route;
 * the message says to set |key|. */
CGN_RC state_advertised(const struct config *cfg, const char *advertise, const char *listen, unsigned port,
	const char *key, char *out, size_t cap, struct cgn_err *err);
/* Write agent.node_id, or the host's name; a |cap| of PROTO_MAX_ID + 1 is enough. CGN_INVALID: neither is a
 * valid node id. */
CGN_RC state_node_id(const struct config *cfg, char *out, size_t cap, struct cgn_err *err);
