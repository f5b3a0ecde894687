/* SPDX-License-Identifier: Apache-2.0 */
/* desired: the objects of Kubernetes that an InferenceCluster and a ModelPool stand for: (resources) ->
 * objects. Each object has only the fields that cgn-operator owns, for server-side apply. Pure; the resources
 * were admitted by the CRDs (deploy/crds), but are read as foreign bytes all the same: fields that are
 * missing or of another type have their defaults. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/json/json.h"

enum desired_kind {
#define DESIRED_KIND(id, kind, api, plural, owned) DESIRED_##id,
#include "policy/fleet/desired/kinds.def"
#undef DESIRED_KIND
	DESIRED_KINDS
};
struct desired_kind_row {
	const char *kind, *api, *plural;
	bool owned;
};
extern const struct desired_kind_row desired_kinds[DESIRED_KINDS];

#define DESIRED_MANAGER    "cgn-operator"                 /* Field manager, and value of the label below. */
#define DESIRED_MANAGED_BY "app.kubernetes.io/managed-by" /* Label of every object that the operator owns. */
#define DESIRED_OWNER      "cognitora.dev/owner"          /* Label: "cluster.NAME" or "pool.NAME". */
#define DESIRED_IN_CLUSTER "cognitora.dev/cluster"        /* Label: name in cluster.name, as agents set it. */
#define DESIRED_NAME_MAX   254
#define DESIRED_OBJECTS    32 /* Most objects of one resource. */

struct desired_images {
	const char *prefix, *tag; /* prefix "cognitora/", then "cgn-router", ':' and tag. */
};
struct desired_object {
	enum desired_kind kind;
	char name[DESIRED_NAME_MAX];
	size_t at, n; /* Place of the object's JSON in the set's text. */
};
struct desired_set {
	struct cgn_buf text;
	struct desired_object objects[DESIRED_OBJECTS];
	size_t n;
};
void desired_set_fini(struct desired_set *s);
struct cgn_str desired_body(const struct desired_set *s, const struct desired_object *o);

#define DESIRED_CASCADES 64 /* Most ModelPools of a cluster that have spec.cascade. */
struct desired_routing {
	const struct json_val *policy; /* The RoutingPolicy of the cluster; NULL: none. */
	const struct json_val *
		pools; /* ModelPools of the cluster that have spec.cascade, in the order in which they count. */
	size_t n_pools;
};
/* CGN_INVALID: the resource cannot be made, with a sentence for its status; CGN_NO_MEMORY. */
CGN_RC desired_of_cluster(struct json_val cluster, const struct desired_routing *routing,
	const struct desired_images *images, struct desired_set *out, struct cgn_err *err);
/* |cluster|: the InferenceCluster that the pool belongs to. */
CGN_RC desired_of_pool(struct json_val pool, struct json_val cluster, const struct desired_images *images,
	struct desired_set *out, struct cgn_err *err);
/* ---- owners ---- */
#define DESIRED_UID 64
#define DESIRED_WHO 200
/* Write the uid of the owner that manages |object| (ownerReferences with controller); false: it has none. */
bool desired_holder(struct json_val object, char out[DESIRED_UID]);
/* May |found| be changed into |wanted|, an object of a set? It may if the owner of |wanted| manages it, or if it has no
 * such owner and its labels say that it was made for that one: Kubernetes takes the owner away where a resource is deleted and its objects
 * are kept. The Secret of routers' state counts by the label of its cluster, because routers make it too. |who| gets "belongs
 * to Deployment web" or "was made by others". */
bool desired_claim(struct json_val found, struct json_val wanted, char who[DESIRED_WHO]);

/* ---- reading resources ---- */
/* Find spec.|a|, or spec.|a|.|b| if |b| is not NULL; false: absent or null. */
bool desired_spec(struct json_val resource, const char *a, const char *b, struct json_val *out);
/* Append the text of spec.|a|.|b|, or |fallback|. */
void desired_text(struct json_val resource, const char *a, const char *b, const char *fallback,
	struct cgn_buf *out);
uint64_t desired_number(struct json_val resource, const char *a, const char *b, uint64_t fallback);
/* Copy metadata.|key|; false: absent or too long. */
bool desired_meta(struct json_val resource, const char *key, char *out, size_t cap);
/* Does spec.security.mode of an InferenceCluster ask for certificates? */
bool desired_is_secured(struct json_val cluster);
/* Do its programs have a list of revoked certificates (spec.security.revoked)? */
bool desired_is_revoking(struct json_val cluster);
/* Does the ModelPool have one pod on each machine? */
bool desired_is_daemon(struct json_val pool);
/* Write cluster.name of an InferenceCluster: spec.clusterName, or its own name. */
void desired_cluster_name(struct json_val cluster, char *out, size_t cap);
