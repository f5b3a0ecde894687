/* SPDX-License-Identifier: Apache-2.0 */
/* watch: take the API server's events of resources and owned objects, and queue the resources to
 * reconcile. */
#include <stdlib.h>

#include "base/log/log.h"
#include "operator/control/control_priv.h"

/* ---- dependents ---- */

struct dependents {
	struct control *c;
	const char *key; /* Key of the resource that changed. */
};

/* Clusters and pools of the namespace may use the resource that changed. */
static void dependent_queue(void *arg, struct item *i)
{
	const struct dependents *d = arg;
	size_t n = strcspn(d->key, "/") + 1;
	if (i->text != NULL && i->kind != DESIRED_POLICY && strncmp(i->key, d->key, n) == 0)
		control_queue(d->c, i);
}

static void dependents_queue(struct control *c, const struct item *changed)
{
	struct dependents d = {c, changed->key};
	if (changed->kind == DESIRED_CLUSTER || changed->kind == DESIRED_POLICY)
		item_each(c, dependent_queue, &d);
}

/* Routers have the cascades of pools in their configuration. */
static void cluster_queue(void *arg, struct item *i)
{
	if (i->kind == DESIRED_CLUSTER)
		dependent_queue(arg, i);
}

static void cascades_queue(struct control *c, const struct item *pool)
{
	struct dependents d = {c, pool->key};
	item_each(c, cluster_queue, &d);
}

/* A cluster that is being deleted waits for the pods of pools. */
static void waiting_queue(void *arg, struct item *i)
{
	const struct dependents *d = arg;
	if (i->kind == DESIRED_CLUSTER && i->text != NULL && i->leaving &&
		strncmp(i->key, d->key, strcspn(d->key, "/") + 1) == 0)
		control_queue(d->c, i);
}

static void deletions_queue(struct control *c, const struct item *gone)
{
	struct dependents d = {c, gone->key};
	if (gone->kind == DESIRED_POOL || gone->kind == DESIRED_STATEFULSET ||
		gone->kind == DESIRED_DAEMONSET)
		item_each(c, waiting_queue, &d);
}

/* ---- resources ---- */

/* The status is ours: a change of it needs no work. */
static void resource_seen(struct control *c, struct item *i, struct json_val object)
{
	struct json_val old;
	bool changed = i->text == NULL || i->generation != item_generation(i->kind, object) ||
		(cgn_ok(json_parse((struct cgn_str){i->text, i->bytes}, &old, NULL, NULL)) &&
			!cgn_str_eq(k8s_meta(old, "uid"), k8s_meta(object, "uid"))) ||
		resource_is_deleting(object);
	char *text = cgn_str_dupz(object.raw);
	if (text == NULL) {
		cgn_log_limited(ERROR, "operator.no_memory", F_STR("resource", i->key));
		return;
	}
	bool cascaded = pool_cascade(i, &old); /* Before the change. */
	free(i->text);
	i->text = text;
	i->bytes = object.raw.n;
	i->version = k8s_version(object);
	i->generation = item_generation(i->kind, object);
	i->leaving = resource_is_deleting(object);
	if (!changed)
		return;
	i->failures = 0;
	if (i->kind != DESIRED_POLICY)
		control_queue(c, i);
	dependents_queue(c, i);
	if (cascaded || pool_cascade(i, &old))
		cascades_queue(c, i);
}

/* ---- owned objects ---- */

static bool has_generation(enum desired_kind kind)
{
	return kind == DESIRED_DEPLOYMENT || kind == DESIRED_STATEFULSET || kind == DESIRED_PDB ||
		kind == DESIRED_DAEMONSET || kind == DESIRED_HPA;
}

static void owner_read(struct item *i, struct json_val object)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf label = {.n = 0};
	struct json_val meta, labels, v;
	struct cgn_str rest;
	if (!json_get(object, "metadata", &meta) || !json_get(meta, "labels", &labels) ||
		!json_get(labels, DESIRED_OWNER, &v) || v.type != JSON_STRING)
		return;
	json_str_to(v, &label);
	rest = cgn_buf_view(&label);
	struct cgn_str kind = cgn_str_split(&rest, '.');
	i->owner_kind = cgn_str_is(kind, "pool") ? DESIRED_POOL : DESIRED_CLUSTER;
	(void)snprintf(i->owner, sizeof i->owner, "%.*s/%.*s", (int)strcspn(i->key, "/"), i->key,
		CGN_STR_ARG(rest));
}

static void owner_queue(struct control *c, const struct item *i)
{
	struct item *owner = item_find(c, i->owner_kind, i->owner);
	if (owner != NULL && owner->text != NULL)
		control_queue(c, owner);
}

static void owned_seen(struct control *c, struct item *i, struct json_val object)
{
	struct json_val status = {.type = JSON_NULL};
	int64_t version = k8s_version(object), generation = item_generation(i->kind, object);
	(void)json_get(object, "status", &status);
	uint64_t ready = json_get_u64(status, "readyReplicas", json_get_u64(status, "numberReady", 0)),
		 replicas =
			 json_get_u64(status, "replicas", json_get_u64(status, "currentNumberScheduled", 0)),
		 wanted = json_get_u64(status, "desiredNumberScheduled", 0);
	bool texts = i->kind == DESIRED_SECRET && item_tls_take(i, object);
	bool counts = texts || ready != i->ready || replicas != i->replicas || wanted != i->wanted;
	i->ready = ready;
	i->replicas = replicas;
	i->wanted = wanted;
	i->leaving = resource_is_deleting(object);
	owner_read(i, object);
	(void)desired_holder(object, i->holder);
	if (i->applying) {
		i->event_version = version;
		i->event_generation = generation;
	} else if (version > i->version) {
		bool drift = i->applied && (has_generation(i->kind) ? generation != i->generation : true);
		i->version = version;
		i->generation = generation;
		if (drift) {
			i->dirty = true;
			metric_add(c->drifts, 1);
		}
		if (drift || counts)
			owner_queue(c, i);
	} else if (counts) {
		owner_queue(c, i);
	}
}

/* ---- the watches ---- */

static void on_object(void *user, struct json_val object)
{
	struct control_watch *s = user;
	char key[CONTROL_KEY];
	struct item *i = item_key(object, key) ? item_add(s->c, s->kind, key) : NULL;
	if (i == NULL) {
		cgn_log_limited(ERROR, "operator.object_ignored", F_STR("kind", desired_kinds[s->kind].kind),
			F_U64("objects", s->c->n_items), F_U64("most", CONTROL_ITEMS));
		return;
	}
	i->marked = false;
	if (desired_kinds[s->kind].owned)
		owned_seen(s->c, i, object);
	else
		resource_seen(s->c, i, object);
}

static void item_gone(struct control *c, struct item *i)
{
	deletions_queue(c, i);
	if (!desired_kinds[i->kind].owned) {
		struct json_val cascade;
		dependents_queue(c, i);
		if (pool_cascade(i, &cascade))
			cascades_queue(c, i);
		free(i->text);
		i->text = NULL;
		if (!i->working)
			item_drop(c, i);
		return;
	}
	owner_queue(c, i);
	i->applied = false; /* The object is made again. */
	i->holder[0] = '\0';
	if (!i->applying)
		item_drop(c, i);
}

static void on_gone(void *user, struct json_val object)
{
	struct control_watch *s = user;
	char key[CONTROL_KEY];
	struct item *i = item_key(object, key) ? item_find(s->c, s->kind, key) : NULL;
	if (i != NULL)
		item_gone(s->c, i);
}

static void item_mark(void *arg, struct item *i)
{
	const struct control_watch *s = arg;
	if (i->kind == s->kind)
		i->marked = true;
}

static void item_sweep(void *arg, struct item *i)
{
	const struct control_watch *s = arg;
	if (i->kind == s->kind && i->marked)
		item_gone(s->c, i);
}

static void on_snapshot_begin(void *user)
{
	struct control_watch *s = user;
	item_each(s->c, item_mark, s);
}

static void on_snapshot_end(void *user)
{
	struct control_watch *s = user;
	item_each(s->c, item_sweep, s);
	s->heard = true;
	if (control_heard(s->c))
		control_wake(s->c);
}

static void on_connected(void *user, bool connected, const char *why)
{
	struct control_watch *s = user;
	s->connected = connected;
	if (!connected)
		cgn_log_limited(WARN, "operator.watch_lost", F_STR("kind", desired_kinds[s->kind].kind),
			F_STR("why", why));
}

static const struct k8s_watch_ops watch_ops = {.news = {on_snapshot_begin, on_snapshot_end, on_connected},
	.on_object = on_object,
	.on_gone = on_gone};

CGN_RC control_watch(struct control *c, struct cgn_err *err)
{
	for (size_t k = 0; k < DESIRED_KINDS; k++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
		path_put((enum desired_kind)k, c->space, NULL, &path);
		c->sources[k] = (struct control_watch){.c = c, .kind = (enum desired_kind)k};
		CGN_TRY(k8s_watch_open(c->k8s, cgn_buf_z(&path),
			desired_kinds[k].owned
				? "labelSelector=app.kubernetes.io%2Fmanaged-by%3D" DESIRED_MANAGER
				: NULL,
			&watch_ops, &c->sources[k], &c->watches[k], err));
	}
	return CGN_OK;
}
