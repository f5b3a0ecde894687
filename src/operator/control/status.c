/* SPDX-License-Identifier: Apache-2.0 */
/* status: the status of a resource, written only when it changes; an event for each change of the phase. */
#include <stdlib.h>
#include <time.h>

#include "base/log/log.h"
#include "operator/control/control_priv.h"

struct status {
	const char *phase, *reason;
	char message[800];
	bool ready;
	uint64_t replicas, ready_replicas, wanted;
};

/* Write the time in whole seconds, as objects have it. */
static void time_now(char out[K8S_TIME_BYTES])
{
	k8s_time(cgn_clock_wall_ms(), out);
	(void)strcpy(out + 19, "Z");
}

static const struct item *owned_of(struct work *w, enum desired_kind kind, const char *suffix)
{
	char key[CONTROL_KEY];
	(void)snprintf(key, sizeof key, "%s/%.*s%s", w->space, 48, w->name, suffix);
	return item_find(w->c, kind, key);
}

static void status_make(struct work *w, struct json_val object, struct status *s)
{
	bool pool = w->resource->kind == DESIRED_POOL;
	bool daemon = pool && desired_is_daemon(object);
	const struct item *main = pool ? owned_of(w, daemon ? DESIRED_DAEMONSET : DESIRED_STATEFULSET, "")
				       : owned_of(w, DESIRED_DEPLOYMENT, "-router");
	*s = (struct status){.wanted = pool ? desired_number(object, "replicas", NULL, 1)
					    : desired_number(object, "router", "replicas", 1)};
	if (main != NULL) {
		s->replicas = main->replicas;
		s->ready_replicas = main->ready;
	}
	if (daemon)
		s->wanted = main != NULL ? main->wanted : 0;
	if (w->going) {
		s->phase = "Deleting";
		s->reason = w->failed ? "DeleteFailed" : "Draining";
		(void)cgn_str_copyz(s->message, sizeof s->message,
			cgn_str_of(w->failed ? w->err.msg : w->waits));
		return;
	}
	if (w->err.code == CGN_UNAVAILABLE && !w->failed) {
		s->phase = "Pending";
		s->reason = "ClusterDeleting";
		(void)snprintf(s->message, sizeof s->message, "%.160s%s%.399s", w->err.msg,
			w->waits[0] != '\0' ? ": " : "", w->waits);
		return;
	}
	if (w->err.code != CGN_FINE) {
		s->phase = w->failed ? "Failing" : "Invalid";
		s->reason = w->others                                             ? "ObjectOfOthers"
			: w->failed && w->certs.reason != NULL && !w->certs.ready ? w->certs.reason
			: w->failed                                               ? "ApplyFailed"
			: w->err.code == CGN_NOT_FOUND                            ? "ClusterMissing"
			: w->err.code == CGN_CONFLICT                             ? "ClusterAmbiguous"
										  : "Invalid";
		(void)cgn_str_copyz(s->message, sizeof s->message, cgn_str_of(w->err.msg));
		return;
	}
	if (daemon && s->wanted == 0) {
		s->phase = "Pending";
		s->reason = "NoMachines";
		(void)snprintf(s->message, sizeof s->message,
			"no machine has the labels of nodeSelector and tolerates these pods");
		return;
	}
	s->ready = s->ready_replicas >= s->wanted;
	s->phase = s->ready ? "Ready" : s->ready_replicas > 0 ? "Degraded" : "Pending";
	s->reason = s->ready ? "AllReady" : "ReplicasNotReady";
	(void)snprintf(s->message, sizeof s->message, "%llu of %llu %s are ready",
		(unsigned long long)s->ready_replicas, (unsigned long long)s->wanted,
		pool ? "replicas" : "routers");
}

struct condition {
	const char *type, *reason, *message, *since;
	bool is;
};

static void condition_put(struct json_out *o, const struct condition *c, int64_t generation, bool timed)
{
	json_open(o, '{');
	json_key_z(o, "type", c->type);
	json_key_z(o, "status", c->is ? "True" : "False");
	json_key_z(o, "reason", c->reason);
	json_key_z(o, "message", c->message);
	json_key_u64(o, "observedGeneration", (uint64_t)generation);
	if (timed)
		json_key_z(o, "lastTransitionTime", c->since);
	json_close(o, '}');
}

/* Write the status; |now| NULL: without times, as its hash counts. */
static void status_put(struct work *w, const struct status *s, int64_t generation, const char *now,
	struct cgn_buf *b)
{
	struct json_out o = json_out_to(b);
	const struct desired_kind_row *row = &desired_kinds[w->resource->kind];
	char selector[256];
	json_open(&o, '{');
	json_key_z(&o, "apiVersion", row->api);
	json_key_z(&o, "kind", row->kind);
	json_key_open(&o, "metadata", '{');
	json_key_z(&o, "name", w->name);
	json_key_z(&o, "namespace", w->space);
	json_close(&o, '}');
	json_key_open(&o, "status", '{');
	json_key_z(&o, "phase", s->phase);
	json_key_u64(&o, "readyReplicas", s->ready_replicas);
	json_key_u64(&o, "observedGeneration", (uint64_t)generation);
	if (w->certs.ends != 0)
		json_key_z(&o, "certificatesEnd", w->certs.ends_text);
	if (w->resource->kind == DESIRED_POOL) {
		(void)snprintf(selector, sizeof selector,
			"app.kubernetes.io/component=pool,app.kubernetes.io/instance=%.48s", w->name);
		json_key_u64(&o, "replicas", s->replicas);
		json_key_z(&o, "selector", selector);
	}
	if (now != NULL)
		json_key_z(&o, "lastReconciled", now);
	json_key_open(&o, "conditions", '[');
	const struct condition ready = {"Ready", s->reason, s->message, w->resource->since, s->ready};
	condition_put(&o, &ready, generation, now != NULL);
	const struct condition certs = {"CertificatesReady", w->certs.reason, w->certs.message,
		w->resource->certs_since, w->certs.ready};
	if (certs.reason != NULL)
		condition_put(&o, &certs, generation, now != NULL);
	const struct condition deleting = {"Deleting", s->reason, s->message, w->resource->since, true};
	if (w->going)
		condition_put(&o, &deleting, generation, now != NULL);
	json_close(&o, ']');
	json_close(&o, '}');
	json_close(&o, '}');
}

static void written_done(void *user, const struct k8s_answer *a)
{
	struct work *w = user;
	w->call = NULL;
	if (a->err->code == CGN_FINE)
		w->resource->status = w->status;
	else if (a->err->code != CGN_NOT_FOUND && !w->failed) {
		w->err = *a->err;
		w->failed = true;
	}
	work_over(w);
}

static void event_put(struct work *w, struct json_val object, const char *reason, const char *message,
	const char *now, struct cgn_buf *b)
{
	struct json_out o = json_out_to(b);
	const struct desired_kind_row *row = &desired_kinds[w->resource->kind];
	json_open(&o, '{');
	json_key_open(&o, "metadata", '{');
	json_key_z(&o, "generateName", "cgn-operator-");
	json_key_z(&o, "namespace", w->space);
	json_close(&o, '}');
	json_key_open(&o, "involvedObject", '{');
	json_key_z(&o, "apiVersion", row->api);
	json_key_z(&o, "kind", row->kind);
	json_key_z(&o, "name", w->name);
	json_key_z(&o, "namespace", w->space);
	json_key_str(&o, "uid", k8s_meta(object, "uid"));
	json_close(&o, '}');
	json_key_z(&o, "type", w->err.code == CGN_FINE ? "Normal" : "Warning");
	json_key_z(&o, "reason", reason);
	json_key_z(&o, "message", message);
	json_key_open(&o, "source", '{');
	json_key_z(&o, "component", DESIRED_MANAGER);
	json_close(&o, '}');
	json_key_z(&o, "firstTimestamp", now);
	json_key_z(&o, "lastTimestamp", now);
	json_key_u64(&o, "count", 1);
	json_close(&o, '}');
}

static void status_send(struct work *w, struct cgn_str body)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	struct cgn_err err;
	path_put(w->resource->kind, w->space, w->name, &path);
	cgn_buf_putz(&path, "/status?fieldManager=" DESIRED_MANAGER "&force=true");
	const struct k8s_request rq = {.method = "PATCH",
		.path = cgn_buf_z(&path),
		.type = K8S_APPLY_PATCH,
		.body = body};
	if (path.bad || !cgn_ok(k8s_call_start(w->c->k8s, &rq, written_done, w, &w->call, &err)))
		work_over(w);
}

static void body_send(struct work *w)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = w->body;
	w->body = (struct cgn_buf){.n = 0};
	status_send(w, cgn_buf_view(&body));
}

static void event_done(void *user, const struct k8s_answer *a)
{
	struct work *w = user;
	w->call = NULL;
	if (a->err->code != CGN_FINE)
		cgn_log_limited(WARN, "operator.event_lost", F_STR("why", a->err->msg));
	body_send(w);
}

static void note_done(void *user, const struct k8s_answer *a)
{
	struct work *w = user;
	w->call = NULL;
	if (a->err->code != CGN_FINE)
		cgn_log_limited(WARN, "operator.event_lost", F_STR("why", a->err->msg));
	status_write(w);
}

static bool event_send(struct work *w, const struct cgn_buf *event, k8s_done_fn *done)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	cgn_buf_fmt(&path, "/api/v1/namespaces/%s/events", w->space);
	const struct k8s_request rq = {.method = "POST",
		.path = cgn_buf_z(&path),
		.body = cgn_buf_view(event)};
	return cgn_ok(k8s_call_start(w->c->k8s, &rq, done, w, &w->call, &w->err));
}

static void told_done(void *user, const struct k8s_answer *a)
{
	struct work *w = user;
	w->call = NULL;
	if (a->err->code != CGN_FINE) /* No events are taken in a namespace that ends. */
		cgn_log_limited(WARN, "operator.event_lost", F_STR("why", a->err->msg));
	w->told(w);
}

void event_tell(struct work *w, const char *reason, const char *message, void (*done)(void *work))
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf event = {.n = 0};
	struct json_val object = {.type = JSON_NULL};
	struct cgn_err err;
	char now[K8S_TIME_BYTES];
	time_now(now);
	if (w->resource->text == NULL || /* Without its uid the event still names the resource. */
		!cgn_ok(json_parse((struct cgn_str){w->resource->text, w->resource->bytes}, &object, NULL,
			&err)))
		object.type = JSON_NULL;
	event_put(w, object, reason, message, now, &event);
	w->told = done;
	if (!event_send(w, &event, told_done)) {
		w->failed = true;
		work_over(w);
	}
}

void status_write(struct work *w)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf plain = {.n = 0}, event = {.n = 0};
	struct json_val object;
	struct status s;
	char now[K8S_TIME_BYTES];
	if (w->resource->text == NULL ||
		!cgn_ok(json_parse((struct cgn_str){w->resource->text, w->resource->bytes}, &object, NULL,
			NULL))) {
		work_over(w);
		return;
	}
	time_now(now);
	if (w->certs.note.n > 0 && !w->failed) {
		event_put(w, object, w->certs.made, cgn_buf_z(&w->certs.note), now, &event);
		cgn_buf_fini(&w->certs.note);
		if (event_send(w, &event, note_done))
			return;
		event.n = 0;
	}
	status_make(w, object, &s);
	status_put(w, &s, w->resource->generation, NULL, &plain);
	w->status = crypto_sha256(cgn_buf_view(&plain));
	if (memcmp(w->status.b, w->resource->status.b, sizeof w->status.b) == 0) {
		work_over(w);
		return;
	}
	if (w->resource->phase == NULL || w->resource->ready_told != s.ready)
		(void)cgn_str_copyz(w->resource->since, sizeof w->resource->since, cgn_str_of(now));
	w->resource->ready_told = s.ready;
	if (w->resource->certs_since[0] == '\0' || w->resource->certs_told != w->certs.ready)
		(void)cgn_str_copyz(w->resource->certs_since, sizeof w->resource->certs_since,
			cgn_str_of(now));
	w->resource->certs_told = w->certs.ready;
	w->body.n = 0;
	status_put(w, &s, w->resource->generation, now, &w->body);
	if (w->resource->phase != NULL && strcmp(w->resource->phase, s.phase) == 0) {
		body_send(w);
		return;
	}
	w->resource->phase = s.phase;
	event_put(w, object, s.reason, s.message, now, &event);
	if (!event_send(w, &event, event_done)) {
		w->failed = true;
		work_over(w);
	}
}
