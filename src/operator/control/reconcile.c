/* SPDX-License-Identifier: Apache-2.0 */
/* reconcile: make the objects that a resource stands for, apply those that differ from their last applied
 * state, and delete those that it no longer stands for. */
#include "operator/control/control_priv.h"

/* ---- the policy of a cluster ---- */

struct policy_search {
	struct control *c;
	const struct item *cluster;
	struct item *found;
};

static void policy_look(void *arg, struct item *i)
{
	struct policy_search *s = arg;
	struct json_val object;
	struct item *cluster = NULL;
	struct cgn_err err;
	size_t n = strcspn(i->key, "/") + 1;
	if (i->kind != DESIRED_POLICY || i->text == NULL || strncmp(i->key, s->cluster->key, n) != 0 ||
		!cgn_ok(json_parse((struct cgn_str){i->text, i->bytes}, &object, NULL, NULL)))
		return;
	if (!cgn_ok(work_cluster(s->c, i, object, &cluster, &err)) || cluster != s->cluster)
		return;
	if (s->found == NULL || strcmp(i->key, s->found->key) < 0)
		s->found = i;
}

/* ---- cascades of the pools of a cluster ---- */

struct cascade_search {
	struct control *c;
	const struct item *cluster;
	struct item *found[DESIRED_CASCADES]; /* By name. */
	struct json_val pools[DESIRED_CASCADES];
	size_t n;
};

static void cascade_look(void *arg, struct item *i)
{
	struct cascade_search *s = arg;
	struct json_val object, cascade;
	struct item *cluster = NULL;
	struct cgn_err err;
	size_t at;
	if (s->n == DESIRED_CASCADES || strncmp(i->key, s->cluster->key, strcspn(i->key, "/") + 1) != 0 ||
		!pool_cascade(i, &cascade) ||
		!cgn_ok(json_parse((struct cgn_str){i->text, i->bytes}, &object, NULL, NULL)) ||
		!cgn_ok(work_cluster(s->c, i, object, &cluster, &err)) || cluster != s->cluster)
		return;
	for (at = s->n++; at > 0 && strcmp(i->key, s->found[at - 1]->key) < 0; at--) {
		s->found[at] = s->found[at - 1];
		s->pools[at] = s->pools[at - 1];
	}
	s->found[at] = i;
	s->pools[at] = object;
}

/* ---- the objects ---- */

static CGN_RC objects_make(struct work *w, struct json_val object, struct cgn_err *err)
{
	struct control *c = w->c;
	struct json_val other;
	if (w->resource->kind == DESIRED_POOL) {
		struct item *cluster = NULL;
		CGN_TRY(work_cluster(c, w->resource, object, &cluster, err));
		CGN_TRY(json_parse((struct cgn_str){cluster->text, cluster->bytes}, &other, NULL, err));
		if (resource_is_deleting(other))
			return CGN_FAIL(err, UNAVAILABLE, "InferenceCluster %.60s is being deleted",
				strchr(cluster->key, '/') + 1);
		return desired_of_pool(object, other, &c->images, &w->set, err);
	}
	struct policy_search s = {c, w->resource, NULL};
	item_each(c, policy_look, &s);
	if (s.found != NULL)
		CGN_TRY(json_parse((struct cgn_str){s.found->text, s.found->bytes}, &other, NULL, err));
	struct cascade_search cascades = {.c = c, .cluster = w->resource};
	item_each(c, cascade_look, &cascades);
	const struct desired_routing routing = {.policy = s.found != NULL ? &other : NULL,
		.pools = cascades.pools,
		.n_pools = cascades.n};
	return desired_of_cluster(object, &routing, &c->images, &w->set, err);
}

static void object_next(struct work *w);

static void applied_done(void *user, const struct k8s_answer *a)
{
	struct work *w = user;
	struct item *i = w->object;
	w->call = NULL;
	w->object = NULL;
	i->applying = false;
	if (a->err->code != CGN_FINE) {
		w->err = *a->err;
		w->failed = true;
		if (i->version == 0)
			item_drop(w->c, i);
		status_write(w);
		return;
	}
	i->version = k8s_version(a->object);
	i->generation = item_generation(i->kind, a->object);
	(void)desired_holder(a->object, i->holder);
	if (i->kind == DESIRED_SECRET)
		(void)item_tls_take(i, a->object);
	i->body = crypto_sha256(desired_body(&w->set, &w->set.objects[w->at]));
	i->applied = true;
	i->dirty = i->event_version > i->version &&
		(i->event_generation == 0 || i->event_generation != i->generation);
	if (i->event_version > i->version && !i->dirty)
		i->version = i->event_version;
	if (i->dirty)
		control_queue(w->c, w->resource);
	i->event_version = 0;
	metric_add(w->c->applies, 1);
	w->writes = true;
	w->at++;
	object_next(w);
}

/* The object stands as it was applied. */
static bool object_stands(struct work *w, const struct item *i)
{
	struct sha256 body = crypto_sha256(desired_body(&w->set, &w->set.objects[w->at]));
	return i->applied && !i->dirty && memcmp(body.b, i->body.b, sizeof body.b) == 0;
}

static bool object_apply(struct work *w, struct item *i)
{
	const struct desired_object *o = &w->set.objects[w->at];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	path_put(o->kind, w->space, o->name, &path);
	cgn_buf_putz(&path, "?fieldManager=" DESIRED_MANAGER "&force=true");
	const struct k8s_request rq = {.method = "PATCH",
		.path = cgn_buf_z(&path),
		.type = K8S_APPLY_PATCH,
		.body = desired_body(&w->set, o)};
	i->owner_kind = w->resource->kind;
	(void)cgn_str_copyz(i->owner, sizeof i->owner, cgn_str_of(w->resource->key));
	i->event_version = 0;
	if (!cgn_ok(k8s_call_start(w->c->k8s, &rq, applied_done, w, &w->call, &w->err)))
		return false;
	w->object = i;
	i->applying = true;
	return true;
}

/* ---- objects of others ---- */

/* An object that was not found before is free to be made; one of others ends the work. */
static void looked_done(void *user, const struct k8s_answer *a)
{
	struct work *w = user;
	struct item *i = w->object;
	const struct desired_object *o = &w->set.objects[w->at];
	struct json_val list, found, wanted;
	char who[DESIRED_WHO];
	w->call = NULL;
	w->object = NULL;
	i->applying = false;
	if (a->err->code != CGN_FINE) {
		w->err = *a->err;
		w->failed = true;
	} else if (json_get(a->object, "items", &list) && list.type == JSON_ARRAY) {
		struct json_iter it = json_iter_of(list);
		bool there = json_next_elem(&it, &found);
		if (there && cgn_ok(json_parse(desired_body(&w->set, o), &wanted, NULL, &w->err)) &&
			!desired_claim(found, wanted, who)) {
			(void)CGN_FAIL(&w->err, CONFLICT,
				"%s %.100s exists and %s: it is left as it is. Rename or delete it, or rename this resource",
				desired_kinds[o->kind].kind, o->name, who);
			w->others = w->failed = true;
		}
	}
	if (!w->failed)
		w->failed = !object_apply(w, i);
	if (!w->failed)
		return;
	if (i->version == 0)
		item_drop(w->c, i);
	status_write(w);
}

/* Look at the object that stands in this one's place: lists and watches show objects with our labels only. */
static bool object_look(struct work *w, struct item *i)
{
	const struct desired_object *o = &w->set.objects[w->at];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	path_put(o->kind, w->space, NULL, &path);
	cgn_buf_fmt(&path, "?fieldSelector=metadata.name%%3D%s", o->name);
	const struct k8s_request rq = {.method = "GET", .path = cgn_buf_z(&path)};
	if (!cgn_ok(k8s_call_start(w->c->k8s, &rq, looked_done, w, &w->call, &w->err)))
		return false;
	w->object = i;
	i->applying = true;
	return true;
}

/* ---- objects that are no longer wanted ---- */

struct surplus {
	const struct work *w;
	struct item *found;
};

static void surplus_look(void *arg, struct item *i)
{
	struct surplus *s = arg;
	const char *name = strchr(i->key, '/') + 1;
	if (i->tls != NULL && i->tls->authority)
		return; /* Kubernetes deletes an authority with its cluster. */
	if (!desired_kinds[i->kind].owned || !item_is_held(i, s->w))
		return;
	for (size_t n = 0; n < s->w->set.n; n++)
		if (s->w->set.objects[n].kind == i->kind && strcmp(s->w->set.objects[n].name, name) == 0)
			return;
	s->found = i;
}

static void surplus_next(struct work *w);

static void deleted_done(void *user, const struct k8s_answer *a)
{
	struct work *w = user;
	struct item *i = w->object;
	w->call = NULL;
	w->object = NULL;
	i->applying = false;
	if (a->err->code != CGN_FINE && a->err->code != CGN_NOT_FOUND) {
		w->err = *a->err;
		w->failed = true;
		status_write(w);
		return;
	}
	item_drop(w->c, i);
	w->writes = true;
	surplus_next(w);
}

static void surplus_next(struct work *w)
{
	struct surplus s = {w, NULL};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	item_each(w->c, surplus_look, &s);
	if (s.found == NULL) {
		w->resource->looked = w->resource->generation;
		status_write(w);
		return;
	}
	path_put(s.found->kind, w->space, strchr(s.found->key, '/') + 1, &path);
	const struct k8s_request rq = {.method = "DELETE",
		.path = cgn_buf_z(&path),
		.body = CGN_STR("{\"propagationPolicy\":\"Background\"}")};
	if (!cgn_ok(k8s_call_start(w->c->k8s, &rq, deleted_done, w, &w->call, &w->err))) {
		w->failed = true;
		status_write(w);
		return;
	}
	w->object = s.found;
	s.found->applying = true;
}

static void object_next(struct work *w)
{
	char key[CONTROL_KEY];
	while (w->at < w->set.n) {
		(void)snprintf(key, sizeof key, "%s/%s", w->space, w->set.objects[w->at].name);
		struct item *i = item_add(w->c, w->set.objects[w->at].kind, key);
		if (i == NULL || i->applying) {
			(void)CGN_FAIL(&w->err, OVERLOADED,
				"too many objects are known, or %s is being changed", key);
			w->failed = true;
			status_write(w);
			return;
		}
		if (!object_stands(w, i)) {
			bool ours = i->applied || strcmp(i->holder, w->uid) == 0;
			w->failed = !(ours ? object_apply(w, i) : object_look(w, i));
			if (w->failed)
				status_write(w);
			return;
		}
		w->at++;
	}
	if (w->writes || w->resource->looked != w->resource->generation)
		surplus_next(w);
	else
		status_write(w);
}

/* ---- begin and end ---- */

static void added_done(void *user, const struct k8s_answer *a)
{
	struct work *w = user;
	if (finalizer_written(w, a))
		object_next(w);
	else if (w->failed)
		status_write(w);
	else
		work_over(w);
}

/* The finalizer comes before the first object. */
static void resource_keep(struct work *w, struct json_val object)
{
	if (finalizer_is_set(object))
		object_next(w);
	else if (!finalizer_write(w, object, true, added_done))
		status_write(w);
}

void work_objects(struct work *w)
{
	const struct item *i = w->resource;
	struct json_val object;
	if (i->text == NULL) { /* The resource was deleted meanwhile. */
		work_over(w);
		return;
	}
	if (cgn_ok(json_parse((struct cgn_str){i->text, i->bytes}, &object, NULL, &w->err)) &&
		cgn_ok(objects_make(w, object, &w->err)))
		resource_keep(w, object);
	else if (w->err.code == CGN_UNAVAILABLE) /* The routers of its cluster go when its pods have ended. */
		pods_end(w);
	else
		status_write(w);
}
