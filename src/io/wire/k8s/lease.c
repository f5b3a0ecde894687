/* SPDX-License-Identifier: Apache-2.0 */
/* lease: which of several programs has a Lease object (coordination.k8s.io/v1). A write names the version that was read, so that
 * of two programs one succeeds. */
#include <stdlib.h>

#include "io/wire/k8s/k8s_priv.h"

#define K8S_LEASE_TAG 0x6b385004U

struct k8s_lease {
	uint32_t tag;
	bool mine, releasing;
	struct k8s *k;
	const struct k8s_lease_ops *ops;
	void *user;
	char path[600], space[256], name[256], identity[256];
	cgn_nsec duration;
	struct cgn_timer timer;
	struct k8s_call *call;
	cgn_nsec sent_at,
		renewed_at; /* When the write under way, and the last one that succeeded, was sent. */
	/* The version of the object that was read last, and since when it has that version. */
	int64_t version;
	cgn_nsec seen_at;
	uint64_t transitions;
	void (*released)(void *user);
	void *released_user;
};

static void mine_set(struct k8s_lease *l, bool mine)
{
	if (l->mine == mine)
		return;
	l->mine = mine;
	if (!l->releasing)
		l->ops->on_change(l->user, mine);
}

bool k8s_lease_mine(const struct k8s_lease *l)
{
	CGN_LIVE(l, K8S_LEASE_TAG);
	return l->mine && cgn_since(cgn_loop_now(l->k->loop), l->renewed_at) < l->duration / 4 * 3;
}

static void lease_rest(struct k8s_lease *l)
{
	if (l->mine && !k8s_lease_mine(l))
		mine_set(l, false);
	cgn_timer_set(&l->timer, l->duration / 5);
}

static void lease_trouble(struct k8s_lease *l, const struct cgn_err *why)
{
	if (l->ops->on_trouble != NULL)
		l->ops->on_trouble(l->user, why);
	lease_rest(l);
}

/* ---- write ---- */

static void body_put(const struct k8s_lease *l, const char *holder, struct cgn_buf *b)
{
	struct json_out o = json_out_to(b);
	char now[K8S_TIME_BYTES], version[24];
	k8s_time(cgn_clock_wall_ms(), now);
	(void)snprintf(version, sizeof version, "%lld", (long long)l->version);
	json_open(&o, '{');
	json_key_z(&o, "apiVersion", "coordination.k8s.io/v1");
	json_key_z(&o, "kind", "Lease");
	json_key_open(&o, "metadata", '{');
	json_key_z(&o, "name", l->name);
	json_key_z(&o, "namespace", l->space);
	if (l->version != 0)
		json_key_z(&o, "resourceVersion", version);
	json_close(&o, '}');
	json_key_open(&o, "spec", '{');
	json_key_z(&o, "holderIdentity", holder);
	json_key_u64(&o, "leaseDurationSeconds", l->duration / CGN_SEC);
	json_key_z(&o, "renewTime", now);
	json_key_u64(&o, "leaseTransitions", l->transitions + !l->mine);
	json_close(&o, '}');
	json_close(&o, '}');
}

static void write_done(void *user, const struct k8s_answer *a)
{
	struct k8s_lease *l = user;
	CGN_LIVE(l, K8S_LEASE_TAG);
	l->call = NULL;
	if (a->err->code == CGN_CONFLICT || a->err->code == CGN_NOT_FOUND) {
		/* Another program was faster, or the object was deleted. */
		mine_set(l, false);
		lease_rest(l);
		return;
	}
	if (a->err->code != CGN_FINE) {
		lease_trouble(l, a->err);
		return;
	}
	l->version = k8s_version(a->object);
	l->renewed_at = l->sent_at;
	mine_set(l, true);
	lease_rest(l);
}

static void lease_write(struct k8s_lease *l, const char *holder, k8s_done_fn *done)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = {.n = 0};
	struct cgn_err err;
	char path[900];
	(void)snprintf(path, sizeof path, l->version != 0 ? "%s/%s" : "%s", l->path, l->name);
	body_put(l, holder, &body);
	l->sent_at = cgn_loop_now(l->k->loop);
	const struct k8s_request rq = {.method = l->version != 0 ? "PUT" : "POST",
		.path = path,
		.body = cgn_buf_view(&body)};
	if (!cgn_ok(k8s_call_start(l->k, &rq, done, l, &l->call, &err)))
		lease_trouble(l, &err);
}

/* ---- read ---- */

/* Is the lease of |object| free, or has it lapsed since its last change was seen? */
static bool lease_free(struct k8s_lease *l, struct json_val object, bool *ours)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf holder = {.n = 0};
	struct json_val spec = {.type = JSON_NULL}, v;
	cgn_nsec now = cgn_loop_now(l->k->loop);
	int64_t version = k8s_version(object);
	if (version != l->version)
		l->seen_at = now;
	l->version = version;
	(void)json_get(object, "spec", &spec);
	l->transitions = json_get_u64(spec, "leaseTransitions", 0);
	if (json_get(spec, "holderIdentity", &v) && v.type == JSON_STRING)
		json_str_to(v, &holder);
	*ours = cgn_str_is(cgn_buf_view(&holder), l->identity);
	return holder.n == 0 || cgn_since(now, l->seen_at) > l->duration;
}

static void read_done(void *user, const struct k8s_answer *a)
{
	struct k8s_lease *l = user;
	bool ours = false;
	CGN_LIVE(l, K8S_LEASE_TAG);
	l->call = NULL;
	if (a->err->code == CGN_NOT_FOUND) {
		l->version = 0;
		lease_write(l, l->identity, write_done);
	} else if (a->err->code != CGN_FINE) {
		lease_trouble(l, a->err);
	} else if (lease_free(l, a->object, &ours) || ours) {
		lease_write(l, l->identity, write_done);
	} else {
		mine_set(l, false);
		lease_rest(l);
	}
}

static void lease_read(struct k8s_lease *l)
{
	struct cgn_err err;
	char path[900];
	(void)snprintf(path, sizeof path, "%s/%s", l->path, l->name);
	const struct k8s_request rq = {.method = "GET", .path = path};
	if (!cgn_ok(k8s_call_start(l->k, &rq, read_done, l, &l->call, &err)))
		lease_trouble(l, &err);
}

static void released_done(void *user, const struct k8s_answer *a)
{
	struct k8s_lease *l = user;
	(void)a; /* A lease that could not be given up ends by itself. */
	CGN_LIVE(l, K8S_LEASE_TAG);
	l->call = NULL;
	cgn_timer_set(&l->timer, 1);
}

/* The timer calls |released|, also without an answer. */
static void release_step(struct k8s_lease *l)
{
	if (!l->mine) {
		k8s_call_drop(&l->call);
		if (l->released != NULL)
			l->released(l->released_user);
		return;
	}
	lease_write(l, "", released_done);
	l->mine = false;
	cgn_timer_set(&l->timer, 2 * CGN_SEC);
}

static void lease_fire(struct cgn_timer *t)
{
	struct k8s_lease *l = CGN_CONTAINER(t, struct k8s_lease, timer);
	CGN_LIVE(l, K8S_LEASE_TAG);
	if (l->releasing)
		release_step(l);
	else if (l->call == NULL && l->mine)
		lease_write(l, l->identity, write_done);
	else if (l->call == NULL)
		lease_read(l);
}

void k8s_lease_release(struct k8s_lease *l, void (*done)(void *user), void *user)
{
	CGN_LIVE(l, K8S_LEASE_TAG);
	k8s_call_drop(&l->call);
	l->releasing = true;
	l->released = done;
	l->released_user = user;
	cgn_timer_set(&l->timer, 1);
}

/* ---- open and close ---- */

CGN_RC k8s_lease_open(struct k8s *k, const struct k8s_lease_cfg *cfg, const struct k8s_lease_ops *ops,
	void *user, struct k8s_lease **out, struct cgn_err *err)
{
	struct k8s_lease *l = CGN_NEW(struct k8s_lease);
	CGN_LIVE(k, K8S_TAG);
	CGN_MUST(cfg->duration >= CGN_SEC);
	*l = (struct k8s_lease){.tag = K8S_LEASE_TAG,
		.k = k,
		.ops = ops,
		.user = user,
		.duration = cfg->duration};
	if (!cgn_str_copyz(l->space, sizeof l->space, cgn_str_of(cfg->space)) ||
		!cgn_str_copyz(l->name, sizeof l->name, cgn_str_of(cfg->name)) ||
		!cgn_str_copyz(l->identity, sizeof l->identity, cgn_str_of(cfg->identity))) {
		free(l);
		return CGN_FAIL(err, INVALID, "the name of a lease is too long");
	}
	(void)snprintf(l->path, sizeof l->path, "/apis/coordination.k8s.io/v1/namespaces/%s/leases",
		l->space);
	cgn_timer_init(&l->timer, k->loop, lease_fire);
	cgn_timer_set(&l->timer, 1);
	k->users++;
	*out = l;
	return CGN_OK;
}

void k8s_lease_close(struct k8s_lease **take)
{
	struct k8s_lease *l = CGN_TAKE_LIVE(take, K8S_LEASE_TAG);
	if (l == NULL)
		return;
	cgn_timer_cancel(&l->timer);
	k8s_call_drop(&l->call);
	l->k->users--;
	l->tag = 0;
	free(l);
}
