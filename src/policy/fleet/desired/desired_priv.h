/* SPDX-License-Identifier: Apache-2.0 */
/* desired, inside: writing objects. */
#pragma once
#include "policy/fleet/desired/desired.h"

/* Owner of the objects that are written. */
struct desired_owner {
	struct json_val resource;
	enum desired_kind kind;
	const struct desired_images *images;
	struct desired_set *set;
	char name[48], space[64], uid[64];
	char cluster[DESIRED_NAME_MAX - 16]; /* cluster.name */
};
CGN_RC desired_owner_read(struct json_val resource, enum desired_kind kind,
	const struct desired_images *images, struct desired_set *set, struct desired_owner *out,
	struct cgn_err *err);

/* Begin an object: apiVersion, kind, metadata with labels and owner. Leave the writer inside the object. */
struct json_out desired_begin(const struct desired_owner *w, enum desired_kind kind, const char *name,
	const char *component);
void desired_end(const struct desired_owner *w, struct json_out *o);

/* Write "labels", "matchLabels" or "selector" that select the pods of |component|. Labels of pods have the cluster too. */
void desired_labels(const struct desired_owner *w, struct json_out *o, const char *key,
	const char *component);
/* Write "image" of one of our programs. */
void desired_image(const struct desired_owner *w, struct json_out *o, const char *program);
/* Write "securityContext" of a container of ours: Pod Security "restricted". */
void desired_restricted(struct json_out *o);
/* Write the members of a pod that all pods have: security, service account, the nodes to run on. */
void desired_pod(const struct desired_owner *w, struct json_out *o, struct json_val from,
	const char *account);
/* Write "volumes": configuration of |cluster_object|, and an empty state folder; the array stays open. */
void desired_volumes(struct json_out *o, const char *cluster_object);
/* Write a volume with the certificate of |component| of |cluster_object|. */
void desired_tls_volume(struct json_out *o, const char *cluster_object, const char *component);
/* Write "volumeMounts" of these. |component|: whose certificate is mounted; NULL: none. */
void desired_mounts(struct json_out *o, const char *component);
void desired_mounts_open(struct json_out *o, const char *component); /* The array stays open. */
void desired_mount(struct json_out *o, const char *name, const char *path);
/* Copy spec.|a|.|b| (spec.|a| if |b| is NULL) as it is, if it is there and of this type. */
void desired_member(struct json_out *o, struct json_val from, const char *a, const char *b,
	enum json_type type);
#define DESIRED_TLS "/etc/cognitora-tls" /* Where it is. */
/* Write an environment variable: a value, or a field of the pod. */
void desired_env(struct json_out *o, const char *name, const char *value);
void desired_env_field(struct json_out *o, const char *name, const char *field);
/* Return the seconds that open requests have at the end of a pod: spec.|a|.|b|, a duration. */
uint64_t desired_drain_seconds(struct json_val resource, const char *a, const char *b);
/* Write a port of a container. */
void desired_container_port(struct json_out *o, const char *name, uint64_t port);
/* Write a probe: a GET of |path| on |port| each 5 s, which fails after |failures|, else 3. */
void desired_probe_times(struct json_out *o, const char *key, const char *path, uint64_t port, bool tls,
	uint64_t failures);
void desired_probe(struct json_out *o, const char *key, const char *path, uint64_t port, bool tls);
/* Write a PodDisruptionBudget that lets one pod of |component| go at a time. */
void desired_budget(const struct desired_owner *w, const char *name, const char *component);
/* Write the HorizontalPodAutoscaler of a ModelPool, if spec.autoscaling is set. CGN_INVALID: its members do not fit. */
CGN_RC desired_autoscaling(const struct desired_owner *w, struct cgn_err *err);
/* Append a line of TOML: a key and a text. */
void desired_toml_text(struct cgn_buf *b, const char *key, struct cgn_str value);
/* Append the settings of a RoutingPolicy and the cascades of pools, as sections of TOML. */
void desired_routing_put(const struct desired_routing *r, struct cgn_buf *b);
/* ---- stores.c: spec.stores of an InferenceCluster ---- */
uint64_t desired_stores(struct json_val cluster); /* Number of stores; 0: none. */
/* Append the line "peers" of [kv]; nothing if there are none. */
void desired_stores_peers(const struct desired_owner *w, struct cgn_buf *b);
/* Write StatefulSet, Services and PodDisruptionBudget; nothing if there are none. */
void desired_stores_objects(const struct desired_owner *w);
/* Write "env" of an engine of a pool; nothing if its cluster has no stores. |lmcache|: also LMCache's variables. */
void desired_stores_env(const struct desired_owner *w, struct json_val cluster, const char *cluster_object,
	bool lmcache, struct json_out *o);
