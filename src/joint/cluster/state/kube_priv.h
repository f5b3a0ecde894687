/* SPDX-License-Identifier: Apache-2.0 */
/* kube: how a cluster lies in a namespace of Kubernetes.
 *
 *   Lease  CLUSTER.node.ID    an agent: its Node as JSON in the annotation cognitora.dev/node; it is renewed each
 *                             agent.heartbeat. Labels cognitora.dev/cluster=CLUSTER, cognitora.dev/record=node
 *   Lease  CLUSTER.leader     the router that leads
 *   Secret CLUSTER.state      cordons ("cordon.ID") and documents ("policy", "models", "invites"): one of them may have
 *                             invites, so that it is a Secret
 *
 * An id other than a DNS name stands as id.HASH in the name of its Lease. */
#pragma once
#include "io/wire/k8s/k8s.h"
#include "joint/cluster/state/state_priv.h"

#define KUBE_NAME     256
#define KUBE_NODE     "cognitora.dev/node"
#define KUBE_CLUSTER  "cognitora.dev/cluster"
#define KUBE_RECORD   "cognitora.dev/record"
#define KUBE_FORMAT   "1"
#define KUBE_MAX_PATH 1200

/* Where the cluster lies: the server, the namespace and the names. */
struct kube_place {
	struct k8s *k8s;
	char space[64], cluster[64];
};
CGN_RC kube_place_open(struct cgn_loop *l, const struct config *cfg, struct kube_place *out,
	struct cgn_err *err);
void kube_place_close(struct kube_place *p);

void kube_lease_name(const struct kube_place *p, const char *id, char out[KUBE_NAME]);
void kube_leases_path(const struct kube_place *p, char out[KUBE_MAX_PATH]);
void kube_secrets_path(const struct kube_place *p, char out[KUBE_MAX_PATH]);
/* Write the key of a cordon in the Secret: bytes other than letters, digits, '-' and '.' become "_XX". False: too long. */
bool kube_cordon_key(const char *id, char out[KUBE_NAME]);
bool kube_cordon_id(struct cgn_str key, char id[PROTO_MAX_ID + 1]); /* False: the key of no cordon. */
/* Read the Unix seconds of "2026-01-31T12:00:00..."; -1: it is not a time. */
int64_t kube_seconds(struct cgn_str time);
/* ---- kube_slices.c: addresses of the agents' Service ---- */
struct kube_slices {
	struct k8s_watch *watch; /* NULL: no Service is named. */
	struct roster
		addresses; /* By address; the node's address is the name of the slice. roster_init before. */
	bool listing;      /* The list is being read: what leaves is told at its end. */
	char service[64];
	void (*on_gone)(void *user, const char *address);
	void *user;
};
/* Call |on_gone| for each address, without a port, that left the Service's EndpointSlices. */
CGN_RC kube_slices_open(struct kube_slices *k, const struct kube_place *place, const char *service,
	void (*on_gone)(void *user, const char *address), void *user, struct cgn_err *err);
void kube_slices_close(struct kube_slices *k);

/* Find the member of a member; false: there is none. */
bool kube_get2(struct json_val object, const char *key, const char *inner, struct json_val *out);
