/* SPDX-License-Identifier: Apache-2.0 */
/* k8s: the API server of a Kubernetes cluster, over HTTPS and JSON: single calls, and lists that are watched. In a
 * pod the credentials are those of its service account, whose token is read again each minute because the kubelet
 * replaces it; elsewhere a kubeconfig in JSON names server and credentials. One loop, its thread. Facts of the wire:
 * https://kubernetes.io/docs/reference/using-api/api-concepts/ */
#pragma once
#include <stdbool.h>

#include "base/core/err.h"
#include "base/json/json.h"
#include "io/os/loop/loop.h"
#include "io/wire/listwatch/listwatch.h"

struct k8s;

/* |kubeconfig|: a file; NULL: that of the pod's service account. CGN_INVALID: the file is not a kubeconfig in
 * JSON, or lacks a field; CGN_UNAVAILABLE: a file cannot be read, or this is not a pod; CGN_TLS:
 * certificates. No server is asked. */
CGN_RC k8s_new(struct cgn_loop *l, const char *kubeconfig, struct k8s **out, struct cgn_err *err);
/* Check the kubeconfig and its certificates, for --check. */
CGN_RC k8s_check(const char *kubeconfig, struct cgn_err *err);
/* End it. No call or watch may be left. */
void k8s_free(struct k8s **take);
/* Read the certificates again. */
CGN_RC k8s_reload_tls(struct k8s *k, struct cgn_err *err);
/* Namespace of the context or of the pod; "default" if none is named. */
const char *k8s_namespace(const struct k8s *k);

/* ---- calls ---- */
struct k8s_call;
#define K8S_MAX_ANSWER  ((size_t)32 << 20) /* Bytes of an answer, of a page of a list and of an event. */
#define K8S_MERGE_PATCH "application/merge-patch+json"
#define K8S_JSON_PATCH  "application/json-patch+json"
#define K8S_APPLY_PATCH "application/apply-patch+yaml" /* JSON is YAML. */
struct k8s_request {
	const char *method, *path; /* The path has its query. */
	const char *type;          /* Type of the body; NULL: application/json */
	struct cgn_str body;       /* Copied; may be empty. */
};
/* |err|->code is CGN_FINE for a status below 300, else one that fits the status: CGN_NOT_FOUND, CGN_CONFLICT (409, and
 * 422 of a failed test of a JSON patch), CGN_INVALID, CGN_FORBIDDEN, CGN_UNAVAILABLE, CGN_DEADLINE, ... with the server's sentence.
 * |object|: the answer; its type is JSON_NULL if there is none. Borrowed for the call. |status|: 0: no answer came. */
struct k8s_answer {
	const struct cgn_err *err;
	int status;
	struct json_val object;
};
typedef void k8s_done_fn(void *user, const struct k8s_answer *a);
/* Start a call. |done| is called once, never inline, unless the call is dropped. *out is NULL once |done| was called
 * only if the caller sets it so. */
CGN_RC k8s_call_start(struct k8s *k, const struct k8s_request *rq, k8s_done_fn *done, void *user,
	struct k8s_call **out, struct cgn_err *err);
void k8s_call_drop(struct k8s_call **take); /* NULL-safe; |done| is not called. */

/* ---- lists that are watched ---- */
struct k8s_watch;
struct k8s_watch_ops {
	struct listwatch_news news;
	void (*on_object)(void *user, struct json_val object); /* New, or changed; borrowed. */
	void (*on_gone)(void *user, struct json_val object);   /* Deleted; its last state. */
};
/* Watch the list at |path| (no query). |query|: selectors, without '?', as "labelSelector=a%3Db"; may be
 * NULL. Strings are copied. Nothing is told inline. An unreachable server does not count as a failure. */
CGN_RC k8s_watch_open(struct k8s *k, const char *path, const char *query, const struct k8s_watch_ops *ops,
	void *user, struct k8s_watch **out, struct cgn_err *err);
void k8s_watch_close(struct k8s_watch **take);

/* ---- objects ---- */
/* Return the member |name| of |object|'s metadata as it stands in the text, without quotes: enough for names, versions and
 * times, which need no escapes. {NULL, 0}: there is none. */
struct cgn_str k8s_meta(struct json_val object, const char *name);
/* Return metadata.resourceVersion as a number; 0: none. Versions of one resource are ordered. */
int64_t k8s_version(struct json_val object);
#define K8S_TIME_BYTES 32
/* Write Unix milliseconds as a MicroTime: "2026-01-31T12:00:00.123000Z". */
void k8s_time(uint64_t wall_ms, char out[K8S_TIME_BYTES]);

/* ---- a lease that one of several programs has ---- */
/* The programs renew the Lease object |name| in turn; another one takes it when it was not renewed for |duration|, measured by its own
 * clock from the last change it saw, so that clocks need not agree. */
struct k8s_lease;
struct k8s_lease_cfg {
	const char *space, *name, *identity; /* Copied. */
	cgn_nsec duration;                   /* Whole seconds. */
};
struct k8s_lease_ops {
	void (*on_change)(void *user, bool mine);
	void (*on_trouble)(void *user, const struct cgn_err *why); /* A call failed; the next one follows. */
};
CGN_RC k8s_lease_open(struct k8s *k, const struct k8s_lease_cfg *cfg, const struct k8s_lease_ops *ops,
	void *user, struct k8s_lease **out, struct cgn_err *err);
/* True only while no other program may have it, as long as clocks run equally fast. */
bool k8s_lease_mine(const struct k8s_lease *l);
/* Give it up, so that another program gets it at once, then call |done|; never inline. */
void k8s_lease_release(struct k8s_lease *l, void (*done)(void *user), void *user);
void k8s_lease_close(struct k8s_lease **take);
