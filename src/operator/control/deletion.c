/* SPDX-License-Identifier: Apache-2.0 */
/* deletion: the end of a resource in order. A finalizer keeps the resource until its pods have ended: those of a pool with their
 * streams, those of a cluster's routers when no pool of the cluster has pods any more. All the rest goes by its owner references.
 * An object that is not there is never waited for. */
#include <stdlib.h>

#include "base/log/log.h"
#include "operator/control/control_priv.h"

#define FINALIZER   "cognitora.dev/drain"
#define POOLS_NAMED 4 /* Pools that a cluster's condition names; the others are counted. */

bool resource_is_deleting(struct json_val object)
{
	return k8s_meta(object, "deletionTimestamp").n > 0;
}

/* ---- the finalizer ---- */

/* Write the finalizers of other programs, and tell whether ours was among them. */
static bool finalizers_put(struct json_val object, struct json_out *o)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct json_val meta, list, one;
	bool ours = false;
	if (!json_get(object, "metadata", &meta) || !json_get(meta, "finalizers", &list) ||
		list.type != JSON_ARRAY)
		return false;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &one);) {
		text.n = 0;
		if (one.type == JSON_STRING)
			json_str_to(one, &text);
		if (cgn_str_is(cgn_buf_view(&text), FINALIZER))
			ours = true;
		else
			json_put_raw(o, one.raw);
	}
	return ours;
}

bool finalizer_is_set(struct json_val object)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf rest = {.n = 0};
	struct json_out o = json_out_to(&rest);
	json_open(&o, '[');
	return finalizers_put(object, &o);
}

bool finalizer_write(struct work *w, struct json_val object, bool set, k8s_done_fn *done)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = {.n = 0}, path = {.n = 0};
	struct json_out o = json_out_to(&body);
	path_put(w->resource->kind, w->space, w->name, &path);
	json_open(&o, '{');
	json_key_open(&o, "metadata", '{');
	/* A merge patch replaces the list: one that another program changed meanwhile is read again first. */
	json_key_str(&o, "resourceVersion", k8s_meta(object, "resourceVersion"));
	json_key_open(&o, "finalizers", '[');
	(void)finalizers_put(object, &o);
	if (set)
		json_put_z(&o, FINALIZER);
	json_close(&o, ']');
	json_close(&o, '}');
	json_close(&o, '}');
	const struct k8s_request rq = {.method = "PATCH",
		.path = cgn_buf_z(&path),
		.type = K8S_MERGE_PATCH,
		.body = cgn_buf_view(&body)};
	w->failed =
		path.bad || body.bad || !cgn_ok(k8s_call_start(w->c->k8s, &rq, done, w, &w->call, &w->err));
	return !w->failed;
}

bool finalizer_written(struct work *w, const struct k8s_answer *a)
{
	w->call = NULL;
	if (a->err->code == CGN_FINE || a->err->code == CGN_NOT_FOUND)
		return true;
	w->soon = a->err->code == CGN_CONFLICT; /* The newer version comes by the watch. */
	w->failed = !w->soon;
	w->err = *a->err;
	return false;
}

static void removed_done(void *user, const struct k8s_answer *a)
{
	struct work *w = user;
	if (!finalizer_written(w, a) && w->failed)
		status_write(w);
	else
		work_over(w);
}

static void told_done(void *user)
{
	struct work *w = user;
	struct json_val object;
	if (w->resource->text == NULL ||
		!cgn_ok(json_parse((struct cgn_str){w->resource->text, w->resource->bytes}, &object, NULL,
			&w->err)) ||
		!finalizer_write(w, object, false, removed_done))
		work_over(w);
}

static void resource_release(struct work *w)
{
	static const char *const said[] = {[DESIRED_CLUSTER] = "no pool has pods, and the routers have ended",
		[DESIRED_POOL] = "the pods have ended"};
	event_tell(w, "Drained", said[w->resource->kind], told_done);
}

/* ---- the objects that have pods ---- */

static bool has_pods(enum desired_kind kind)
{
	return kind == DESIRED_STATEFULSET || kind == DESIRED_DAEMONSET || kind == DESIRED_DEPLOYMENT;
}

/* Find the object of a pool that has its pods; NULL: it is not known. */
static struct item *pool_workload(struct control *c, const char *key)
{
	struct item *set = item_find(c, DESIRED_STATEFULSET, key);
	return set != NULL ? set : item_find(c, DESIRED_DAEMONSET, key);
}

struct pods_search {
	const struct work *w;
	struct item *fresh, *any; /* |fresh|: one that is not being deleted yet. */
	size_t n;
};

static void pods_look(void *arg, struct item *i)
{
	struct pods_search *s = arg;
	if (!has_pods(i->kind) || !item_is_held(i, s->w))
		return;
	s->n++;
	s->any = i;
	if (!i->leaving)
		s->fresh = i;
}

static void pods_deleted(void *user, const struct k8s_answer *a)
{
	struct work *w = user;
	struct item *i = w->object;
	w->call = NULL;
	w->object = NULL;
	i->applying = false;
	i->leaving = true;
	if (a->err->code == CGN_NOT_FOUND) {
		item_drop(w->c, i);
	} else if (a->err->code != CGN_FINE) {
		i->leaving = false;
		w->err = *a->err;
		w->failed = true;
		status_write(w);
		return;
	}
	pods_end(w);
}

/* Kubernetes keeps the object until its pods are gone. */
static void pods_delete(struct work *w, struct item *i)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	path_put(i->kind, w->space, strchr(i->key, '/') + 1, &path);
	const struct k8s_request rq = {.method = "DELETE",
		.path = cgn_buf_z(&path),
		.body = CGN_STR("{\"propagationPolicy\":\"Foreground\"}")};
	if (!cgn_ok(k8s_call_start(w->c->k8s, &rq, pods_deleted, w, &w->call, &w->err))) {
		w->failed = true;
		status_write(w);
		return;
	}
	w->object = i;
	i->applying = true;
}

void pods_end(struct work *w)
{
	struct pods_search s = {.w = w};
	item_each(w->c, pods_look, &s);
	if (s.fresh != NULL && !s.fresh->applying) {
		pods_delete(w, s.fresh);
		return;
	}
	if (s.n == 0 && w->going) {
		resource_release(w);
		return;
	}
	if (s.n > 0)
		(void)snprintf(w->waits, sizeof w->waits,
			"waits for %s %s, which goes when its pods have ended (%llu left); each has drainTimeout for its streams; a pod of a machine that is lost stays until kubectl delete pod NAME --force",
			desired_kinds[s.any->kind].kind, strchr(s.any->key, '/') + 1,
			(unsigned long long)s.any->replicas);
	status_write(w);
}

/* ---- the pools of a cluster ---- */

struct pools_search {
	struct work *w;
	size_t n;
	struct cgn_buf names;
};

static void pools_look(void *arg, struct item *i)
{
	struct pools_search *s = arg;
	struct control *c = s->w->c;
	struct json_val object;
	struct item *cluster = NULL;
	struct cgn_err err;
	if (i->kind != DESIRED_POOL || i->text == NULL ||
		strncmp(i->key, s->w->resource->key, strcspn(i->key, "/") + 1) != 0 ||
		pool_workload(c, i->key) == NULL ||
		!cgn_ok(json_parse((struct cgn_str){i->text, i->bytes}, &object, NULL, NULL)) ||
		!cgn_ok(work_cluster(c, i, object, &cluster, &err)) || cluster != s->w->resource)
		return;
	if (s->n++ < POOLS_NAMED)
		cgn_buf_fmt(&s->names, "%s%s", s->n > 1 ? ", " : "", strchr(i->key, '/') + 1);
}

void deletion_begin(struct work *w)
{
	struct pools_search s = {.w = w};
	w->going = true;
	if (w->resource->kind == DESIRED_CLUSTER)
		item_each(w->c, pools_look, &s);
	if (s.n > 0) {
		(void)snprintf(w->waits, sizeof w->waits,
			"waits for the pods of %zu ModelPool%s to end: %.200s%s", s.n, s.n == 1 ? "" : "s",
			cgn_buf_z(&s.names), s.n > POOLS_NAMED ? ", ..." : "");
		status_write(w);
	} else {
		pods_end(w);
	}
	cgn_buf_fini(&s.names);
}
