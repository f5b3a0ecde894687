/* SPDX-License-Identifier: Apache-2.0 */
/* kube_announce: an agent's registration in Kubernetes: its Lease, renewed each agent.heartbeat. A write names the version
 * that this agent saw last, so that two agents with one id do not overwrite each other. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/cluster/state/announce_priv.h"
#include "joint/cluster/state/kube_priv.h"

struct kube_registration {
	struct kube_place place;
	struct k8s_call *call;
	cgn_nsec heartbeat, lease;
	bool mine;       /* |version| is of our own last write. */
	bool ended;      /* Answers are ignored. */
	int64_t version; /* Version of the Lease; 0: there is none, or it is not known. */
	/* A Lease of another agent: its version, and since when it has it. */
	int64_t other_version;
	cgn_nsec other_since;
	char pod[254], pod_uid[64]; /* Kubernetes deletes the Lease with this pod; empty: none. */
};

static struct kube_registration *own_of(const struct state_announce *a)
{
	return a->own;
}

static void lease_path(const struct state_announce *a, char out[KUBE_MAX_PATH])
{
	char name[KUBE_NAME];
	kube_lease_name(&own_of(a)->place, a->node->id, name);
	kube_leases_path(&own_of(a)->place, out);
	size_t n = strlen(out);
	(void)snprintf(out + n, KUBE_MAX_PATH - n, "/%s", name);
}

static void registration_send(struct state_announce *a);
static void registration_leave(struct state_announce *a);

/* Begin with a read: another agent may have the Lease. */
static void registration_doubt(struct state_announce *a, const struct cgn_err *why)
{
	own_of(a)->mine = false;
	own_of(a)->version = 0;
	announce_retry(a, why);
}

static void write_done(void *user, const struct k8s_answer *r)
{
	struct state_announce *a = user;
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	own_of(a)->call = NULL;
	if (a->leaving) {
		own_of(a)->mine = r->err->code == CGN_FINE;
		own_of(a)->version = own_of(a)->mine ? k8s_version(r->object) : 0;
		registration_leave(a);
		return;
	}
	if (r->err->code != CGN_FINE) {
		a->changed = true;
		registration_doubt(a, r->err);
		return;
	}
	own_of(a)->mine = true;
	own_of(a)->version = k8s_version(r->object);
	announce_ok(a);
	if (a->changed)
		registration_send(a);
	else
		cgn_timer_set(&a->timer, own_of(a)->heartbeat);
}

/* ---- writing ---- */

static void owner_put(const struct kube_registration *own, struct json_out *o)
{
	if (own->pod[0] == '\0' || own->pod_uid[0] == '\0')
		return;
	json_key_open(o, "ownerReferences", '[');
	json_open(o, '{');
	json_key_z(o, "apiVersion", "v1");
	json_key_z(o, "kind", "Pod");
	json_key_z(o, "name", own->pod);
	json_key_z(o, "uid", own->pod_uid);
	json_close(o, '}');
	json_close(o, ']');
}

static void meta_put(const struct state_announce *a, bool whole, struct json_out *o)
{
	const struct kube_registration *own = own_of(a);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf node = {.n = 0};
	char version[24], name[KUBE_NAME];
	(void)snprintf(version, sizeof version, "%lld", (long long)own->version);
	json_key_open(o, "metadata", '{');
	if (own->version != 0)
		json_key_z(o, "resourceVersion", version);
	if (whole) {
		kube_lease_name(&own->place, a->node->id, name);
		json_key_z(o, "name", name);
		proto_node_to_json(a->node, &node);
		json_key_open(o, "labels", '{');
		json_key_z(o, KUBE_CLUSTER, own->place.cluster);
		json_key_z(o, KUBE_RECORD, "node");
		json_close(o, '}');
		json_key_open(o, "annotations", '{');
		json_key_str(o, KUBE_NODE, cgn_buf_view(&node));
		json_close(o, '}');
		owner_put(own, o);
		o->b->bad = o->b->bad || node.bad;
	}
	json_close(o, '}');
}

/* Write the Lease, |whole| or only its time of renewal. */
static void lease_put(const struct state_announce *a, bool whole, struct cgn_buf *b)
{
	struct json_out o = json_out_to(b);
	char now[K8S_TIME_BYTES];
	k8s_time(cgn_clock_wall_ms(), now);
	json_open(&o, '{');
	if (whole) {
		json_key_z(&o, "apiVersion", "coordination.k8s.io/v1");
		json_key_z(&o, "kind", "Lease");
	}
	meta_put(a, whole, &o);
	json_key_open(&o, "spec", '{');
	json_key_z(&o, "renewTime", now);
	if (whole) {
		json_key_z(&o, "holderIdentity", a->node->address);
		json_key_u64(&o, "leaseDurationSeconds", own_of(a)->lease / CGN_SEC);
	}
	json_close(&o, '}');
	json_close(&o, '}');
}

static void registration_write(struct state_announce *a)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct cgn_err err = {.code = CGN_NO_MEMORY, .msg = "no memory for the registration"};
	bool whole = a->changed || !own_of(a)->mine;
	char path[KUBE_MAX_PATH];
	lease_path(a, path);
	lease_put(a, whole, &b);
	size_t n = strlen(path);
	if (whole)
		(void)snprintf(path + n, sizeof path - n, "?fieldManager=cgn-agent&force=true");
	const struct k8s_request rq = {.method = "PATCH",
		.path = path,
		.type = whole ? K8S_APPLY_PATCH : K8S_MERGE_PATCH,
		.body = cgn_buf_view(&b)};
	if (b.bad ||
		!cgn_ok(k8s_call_start(own_of(a)->place.k8s, &rq, write_done, a, &own_of(a)->call, &err)))
		announce_retry(a, &err);
	else
		a->changed = false;
}

/* ---- the Lease may be another agent's ---- */

/* Does another agent, at another address, renew this Lease? By what this agent saw of it, so that clocks need not agree. */
static bool lease_is_others(struct state_announce *a, struct json_val lease, char *holder, size_t cap)
{
	struct kube_registration *own = own_of(a);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct json_val v;
	cgn_nsec now = cgn_loop_now(a->loop);
	if (kube_get2(lease, "spec", "holderIdentity", &v) && v.type == JSON_STRING)
		json_str_to(v, &text);
	(void)cgn_str_copyz(holder, cap, cgn_buf_view(&text));
	if (text.n == 0 || strcmp(holder, a->node->address) == 0)
		return false;
	if (own->other_version != k8s_version(lease)) {
		own->other_version = k8s_version(lease);
		own->other_since = now;
	}
	return cgn_since(now, own->other_since) <= own->lease;
}

static void read_done(void *user, const struct k8s_answer *r)
{
	struct state_announce *a = user;
	struct cgn_err err;
	char holder[300];
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	own_of(a)->call = NULL;
	if (a->leaving) {
		announce_left(a);
		return;
	}
	if (r->err->code == CGN_FINE && lease_is_others(a, r->object, holder, sizeof holder)) {
		(void)cgn_ok(state_id_taken(a->node->id, holder, &err));
		announce_retry(a, &err);
		return;
	}
	if (r->err->code != CGN_FINE && r->err->code != CGN_NOT_FOUND) {
		announce_retry(a, r->err);
		return;
	}
	own_of(a)->version = r->err->code == CGN_FINE ? k8s_version(r->object) : 0;
	registration_write(a);
}

static void registration_send(struct state_announce *a)
{
	struct cgn_err err;
	char path[KUBE_MAX_PATH];
	if (a->node == NULL || own_of(a)->call != NULL)
		return; /* The update is sent when the answer comes. */
	if (own_of(a)->mine) {
		registration_write(a);
		return;
	}
	lease_path(a, path);
	const struct k8s_request rq = {.method = "GET", .path = path};
	if (!cgn_ok(k8s_call_start(own_of(a)->place.k8s, &rq, read_done, a, &own_of(a)->call, &err)))
		announce_retry(a, &err);
}

/* ---- leave, open and close ---- */

static void left_done(void *user, const struct k8s_answer *r)
{
	struct state_announce *a = user;
	(void)r; /* A Lease that could not be deleted ends by itself. */
	CGN_LIVE(a, STATE_ANNOUNCE_TAG);
	own_of(a)->call = NULL;
	if (!own_of(a)->ended)
		announce_left(a);
}

/* A write that is under way gives the Lease another version, without which it can't be deleted: its answer is waited for. */
static void registration_leave(struct state_announce *a)
{
	struct cgn_err err;
	char path[KUBE_MAX_PATH], body[120];
	if (own_of(a)->call != NULL)
		return;
	lease_path(a, path);
	(void)snprintf(body, sizeof body, "{\"preconditions\":{\"resourceVersion\":\"%lld\"}}",
		(long long)own_of(a)->version);
	const struct k8s_request rq = {.method = "DELETE", .path = path, .body = cgn_str_of(body)};
	if (!own_of(a)->mine ||
		!cgn_ok(k8s_call_start(own_of(a)->place.k8s, &rq, left_done, a, &own_of(a)->call, &err)))
		announce_left(a);
}

static CGN_RC registration_open(struct state_announce *a, const struct config *cfg, struct cgn_err *err)
{
	struct kube_registration *own = CGN_NEW(struct kube_registration);
	const char *pod = getenv("POD_NAME"), *uid = getenv("POD_UID");
	a->own = own;
	own->heartbeat = cfg->agent.heartbeat;
	own->lease = cfg->cluster.lease;
	(void)cgn_str_copyz(own->pod, sizeof own->pod, cgn_str_of(pod != NULL ? pod : ""));
	(void)cgn_str_copyz(own->pod_uid, sizeof own->pod_uid, cgn_str_of(uid != NULL ? uid : ""));
	return kube_place_open(a->loop, cfg, &own->place, err);
}

static void registration_close(struct state_announce *a)
{
	struct kube_registration *own = a->own;
	if (own == NULL)
		return;
	own->ended = true;
	k8s_call_drop(&own->call);
	kube_place_close(&own->place);
	free(own);
}

static CGN_RC registration_certificates(struct state_announce *a, struct cgn_err *err)
{
	return k8s_reload_tls(own_of(a)->place.k8s, err);
}

const struct announce_backend announce_kubernetes = {
	.open = registration_open,
	.send = registration_send,
	.leave = registration_leave,
	.close = registration_close,
	.reload_tls = registration_certificates,
};
