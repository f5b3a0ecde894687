/* SPDX-License-Identifier: Apache-2.0 */
/* state: who belongs to the cluster, who is cordoned and by which policy nodes are chosen, for routers
 * (watch) and agents (announce). Three backends behind one face:
 *   embedded agents announce themselves to the one router over gRPC; leases are timers here; cordons and the
 *   policy live in cluster.state_dir
 *   etcd /cognitora/<cluster>/nodes/<id> under a lease, cordon/<id>, routing/policy; routers watch from a
 *   pinned revision and reconnect
 *   static cluster.nodes; cordons and the policy live in cluster.state_dir cgn_state_connected tells of each
 *   of them whether whoever knows answers. Objects belong to their loop. Callbacks are not made inline, the
 *   first ones come on the loop's next turn; except that state_announce_received and state_leave_received
 *   tell on_node and on_gone before they return. Do not close an object inside its own callbacks. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"
#include "io/loop/loop.h"
#include "policy/proto/proto.h"

struct config;
struct telemetry;
struct tls_ctx;

/* TLS between the cluster's programs, the same for each of them. *out is NULL when [security] asks for none:
 * then it is in clear. Server: TLS when cert_file is set; clients need a certificate of ca_file when
 * require_mtls is. Client: TLS when ca_file is set, with the own certificate when there is one. Both offer
 * ALPN h2. CGN_TLS with the reason. */
CGN_RC state_tls_server(const struct config *cfg, struct tls_ctx **out, struct cgn_err *err);
CGN_RC state_tls_client(const struct config *cfg, struct tls_ctx **out, struct cgn_err *err);

/* ---- routers ---- */
struct state_watch;
struct state_watch_ops {
	/* A node that is new, or that changed; borrowed. Static: once per address of cluster.nodes, a
	 * placeholder whose id and address are that address and which has no engines: the true Node comes
	 * from its Agent.Watch. */
	void (*on_node)(void *user, const Cognitora__V1__Node *node);
	/* It left or its lease ended. Never while etcd is away: the last known membership stays. */
	void (*on_gone)(void *user, const char *id);
	/* Changes only; cordons known at start come as (id, true). May come before on_node, or for ids that
	 * no node has (a static node may be cordoned by its true id or by its address). */
	void (*on_cordon)(void *user, const char *id, bool cordoned);
	/* Changes only, and once at the start. etcd: reachable or not, with the reason; others: true. May be
	 * NULL. */
	void (*on_connected)(void *user, bool connected, const char *why);
	/* The policy document (policy/routing/document.h) was written, by whomever; |text| as it stands
	 * there, sound or not, empty: it was removed. |where|: its key or file, for people. Changes only, and
	 * once at the start when there is one. May be NULL. */
	void (*on_policy)(void *user, struct cgn_str text, const char *where);
};
/* |cfg| is needed during the call only. An etcd that is away is no failure. CGN_INVALID: the configuration
 * lacks something; CGN_TLS: certificates. */
CGN_RC state_watch_open(struct cgn_loop *l, const struct config *cfg, struct telemetry *t,
	const struct state_watch_ops *ops, void *user, struct state_watch **out, struct cgn_err *err);
void state_watch_close(struct state_watch *
		*take); /* cordons still under way are done with CGN_CANCELLED before it returns */
bool state_watch_cordoned(const struct state_watch *s, const char *id);
/* Read the certificates again (SIGHUP). */
CGN_RC state_watch_reload_tls(struct state_watch *s, struct cgn_err *err);
/* Persist and tell (on_cordon comes before |done|). |done| never comes inline; err->code == CGN_FINE,
 * CGN_STORAGE (state_dir can't be written), CGN_UNAVAILABLE (etcd). CGN_INVALID at once: no possible id.
 * Cordoning what is cordoned is fine. */
CGN_RC state_cordon(struct state_watch *s, const char *id, bool cordoned,
	void (*done)(void *user, const struct cgn_err *err), void *user, struct cgn_err *err);
/* Keep another policy document (empty: none) and tell (on_policy comes before |done|). |done| as with
 * state_cordon. CGN_TOO_LARGE at once. */
#define STATE_MAX_POLICY ((size_t)64 * 1024)
CGN_RC state_policy_put(struct state_watch *s, struct cgn_str text,
	void (*done)(void *user, const struct cgn_err *err), void *user, struct cgn_err *err);
const char *state_policy_where(const struct state_watch *s); /* the key or file that it is kept under */
/* Embedded: what the router's gRPC handlers were told. *lease_ms is for the answer. CGN_INVALID: not a sound
 * node, or another cluster's; CGN_UNSUPPORTED: membership is not embedded here (the sentence says where it
 * is); CGN_OVERLOADED: over STATE_MAX_NODES. */
#define STATE_MAX_NODES 4096
CGN_RC state_announce_received(struct state_watch *s, const Cognitora__V1__AnnounceRequest *rq,
	uint64_t *lease_ms, struct cgn_err *err);
CGN_RC state_leave_received(struct state_watch *s, const char *id,
	struct cgn_err *err); /* an unknown id is fine */

/* ---- agents ---- */
struct state_announce;
struct state_announce_ops {
	/* Changes only: the registration stands, or it can't be renewed and why. Logged here, once per
	 * outage. May be NULL. */
	void (*on_connected)(void *user, bool connected, const char *why);
};
/* Nothing is announced before the first update. Static: nothing to do, connected at once. */
CGN_RC state_announce_open(struct cgn_loop *l, const struct config *cfg, struct telemetry *t,
	const struct state_announce_ops *ops, void *user, struct state_announce **out, struct cgn_err *err);
/* Copied. Sent on the next turn when it differs from the last (embedded: also every agent.heartbeat); retried
 * for ever with backoff. */
void state_announce_update(struct state_announce *a, const Cognitora__V1__Node *node);
CGN_RC state_announce_reload_tls(struct state_announce *a, struct cgn_err *err);
/* Leave (embedded) or revoke the lease (etcd), then |done|; never inline, at most 2 s later. |done| may be
 * NULL. The loop must still run until it came; without running it, the node goes when its lease ends. */
void state_announce_close(struct state_announce **take, void (*done)(void *arg), void *arg);

/* ---- block stores ---- */
/* The stores of the cluster's nodes, for one that fetches from them. etcd: the nodes there, without those
 * that are cordoned or draining. Embedded and static: what the router at cluster.router says (Router.Stores),
 * asked every agent.heartbeat, and sooner while that changes. While etcd or the router is away, what was
 * known last stays; logged here, once per outage. At most STATE_MAX_NODES. */
struct state_stores;
struct state_store {
	const char *node_id, *address, *rack, *region; /* borrowed; rack, region: empty when not told */
};
struct state_stores_ops {
	void (*on_store)(void *user, const struct state_store *s); /* new, or changed */
	void (*on_gone)(void *user, const char *node_id);
};
/* As state_watch_open. */
CGN_RC state_stores_open(struct cgn_loop *l, const struct config *cfg, struct telemetry *t,
	const struct state_stores_ops *ops, void *user, struct state_stores **out, struct cgn_err *err);
void state_stores_close(struct state_stores **take);
CGN_RC state_stores_reload_tls(struct state_stores *s, struct cgn_err *err);
/* The address that a server is to tell others: |advertise| when it is not NULL, else the host that |listen|
 * names, else that of the route to the router or etcd; with |port|. CGN_UNAVAILABLE: there is no route; |key|
 * is what the sentence says to set. */
CGN_RC state_advertised(const struct config *cfg, const char *advertise, const char *listen, unsigned port,
	const char *key, char *out, size_t cap, struct cgn_err *err);
/* agent.node_id, or the name of the host; |cap| of PROTO_MAX_ID + 1 is enough. CGN_INVALID: it can't be a
 * node's id. */
CGN_RC state_node_id(const struct config *cfg, char *out, size_t cap, struct cgn_err *err);
