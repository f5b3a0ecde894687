/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/enginenodes/pool.h"

#include <stdlib.h>

#include "base/core/list.h"
#include "base/log/log.h"
#include "joint/daemon/svc/svc.h"
#include "joint/node/engineview/door.h"
#include "policy/fleet/inferencepool/inferencepool.h"
#include "router/shared/enginenodes/enginenodes.h"

#define POOL_TAG   0x640e4003U
#define POOL_ARENA ((size_t)64 * 1024)
#define PATH_BYTES 600

/* A port of a pod. */
struct pool_member {
	struct cgn_link link;
	struct engine_node *node;
	char pod[INFERENCEPOOL_NAME];
	char address[72]; /* host:port */
	uint16_t port;
	bool seen; /* In the snapshot that is being told. */
};

struct engine_pool {
	uint32_t tag;
	const struct engine_nodes_cfg *all;
	const struct config_inference_pool *conf;
	struct k8s *k8s;
	struct cgn_arena arena;
	struct engine_door door; /* The engines' key */
	struct engine_node_kin kin;
	char space[64], name[INFERENCEPOOL_NAME], text[sizeof "/" + 64 + INFERENCEPOOL_NAME];
	char origin[400];
	struct k8s_watch *pools, *pods; /* |pods|: NULL while there is no pool that makes sense */
	struct inferencepool spec;
	struct cgn_link members;
	size_t n_members, refused;
	bool exists, seen; /* |seen|: in the snapshot that is being told */
	bool pool_heard, pods_heard;
	/* Why the API server does not tell the pool, and its pods; empty: it does. */
	char pool_lost[200], pods_lost[200];
	char wrong[200]; /* Why the pool makes no sense; empty: it does */
};

static void heard_tell(const struct engine_pool *p)
{
	if (engine_pool_is_heard(p))
		p->all->ops->heard(p->all->user);
}

/* ---- members ---- */

static struct pool_member *member_find(const struct engine_pool *p, const char *pod, uint16_t port)
{
	cgn_list_each (l, &p->members) {
		struct pool_member *m = CGN_CONTAINER(l, struct pool_member, link);
		if (m->port == port && strcmp(m->pod, pod) == 0)
			return m;
	}
	return NULL;
}

static void member_free(struct engine_pool *p, struct pool_member *m)
{
	cgn_list_drop(&m->link);
	p->n_members--;
	engine_node_free(&m->node);
	free(m);
}

static void member_gone(struct engine_pool *p, struct pool_member *m)
{
	p->all->ops->gone(p->all->user, m->node);
	member_free(p, m);
}

/* Make the node of |m|, the pod's port at index |at|. */
static CGN_RC member_node(struct engine_pool *p, struct pool_member *m, size_t at, struct cgn_err *err)
{
	const struct config_inference_pool *c = p->conf;
	char id[INFERENCEPOOL_NAME + 80], url[100], events[100], replay[100];
	struct cgn_str host = {m->address, (size_t)(strrchr(m->address, ':') - m->address)};
	(void)snprintf(id, sizeof id, p->spec.n_ports > 1 ? "%s.%s:%u" : "%s.%s", m->pod, p->space, m->port);
	(void)snprintf(url, sizeof url, "http://%s", m->address);
	(void)snprintf(events, sizeof events, "tcp://%.*s:%zu", CGN_STR_ARG(host), c->kv_events_port + at);
	(void)snprintf(replay, sizeof replay, "tcp://%.*s:%zu", CGN_STR_ARG(host),
		c->kv_events_replay_port + at);
	if (!proto_node_id_ok(cgn_str_of(id)))
		return CGN_FAIL(err, INVALID, "pod %.64s: its name is too long for a node", m->pod);
	const struct config_engine ce = {.name = id,
		.kind = engine_nodes_kind(c->kind),
		.url = url,
		.model = c->model,
		.ready_interval = c->ready_interval,
		.stall_timeout = c->stall_timeout,
		.kv_events = c->kv_events_port != 0 ? events : NULL,
		.kv_events_replay = c->kv_events_replay_port != 0 ? replay : NULL,
		.kv_events_topic = c->kv_events_topic,
		.kv_events_ranks = 1,
		.kv_events_lora = c->kv_events_lora,
		.kv_offload = c->kv_offload,
		.resume = c->resume,
		.max_conns = c->max_conns};
	const struct engine_node_cfg node = {.id = id,
		.engine = &ce,
		.guess = c->kind == NODE_KIND_AUTO,
		.origin = p->origin};
	return engine_node_new(&p->kin, &node, &m->node, err);
}

/* Make the engine at |address| a node. */
static void member_add(struct engine_pool *p, const struct inferencepool_pod *pod, size_t at,
	const char *address)
{
	struct cgn_err err;
	struct pool_member *m = CGN_NEW(struct pool_member);
	m->port = p->spec.ports[at];
	m->seen = true;
	(void)cgn_str_copyz(m->pod, sizeof m->pod, cgn_str_of(pod->name));
	(void)cgn_str_copyz(m->address, sizeof m->address, cgn_str_of(address));
	if (!cgn_ok(member_node(p, m, at, &err))) {
		cgn_log_limited(ERROR, "router.node_refused", F_STR("node", pod->name),
			F_STR("why", err.msg));
		p->refused++;
		free(m);
		return;
	}
	if (!p->all->ops->came(p->all->user, m->node)) { /* The callee has said why. */
		engine_node_free(&m->node);
		p->refused++;
		free(m);
		return;
	}
	cgn_list_push(&p->members, &m->link);
	p->n_members++;
}

static void port_take(struct engine_pool *p, const struct inferencepool_pod *pod, size_t at)
{
	struct pool_member *m = member_find(p, pod->name, p->spec.ports[at]);
	char address[72];
	(void)snprintf(address, sizeof address, "%s:%u", pod->address, p->spec.ports[at]);
	if (m != NULL)
		m->seen = true;
	if (pod->ending) {
		if (m != NULL)
			engine_node_drain(m->node);
		return;
	}
	bool usable = pod->ready && pod->address[0] != '\0';
	if (m != NULL && (!usable || strcmp(m->address, address) != 0)) {
		member_gone(p, m);
		m = NULL;
	}
	if (m == NULL && usable)
		member_add(p, pod, at, address);
}

/* Remove the nodes that were not seen, or all. */
static void members_sweep(struct engine_pool *p, bool all)
{
	cgn_list_each_safe (l, &p->members) {
		struct pool_member *m = CGN_CONTAINER(l, struct pool_member, link);
		if (all || !m->seen)
			member_gone(p, m);
	}
}

/* ---- pods ---- */

static void on_pods_begin(void *user)
{
	struct engine_pool *p = user;
	CGN_LIVE(p, POOL_TAG);
	p->refused = 0;
	cgn_list_each (l, &p->members)
		CGN_CONTAINER(l, struct pool_member, link)->seen = false;
}

static void on_pods_end(void *user)
{
	struct engine_pool *p = user;
	CGN_LIVE(p, POOL_TAG);
	members_sweep(p, false);
	if (!p->pods_heard)
		cgn_log(INFO, "router.pool", F_STR("pool", p->text), F_U64("nodes", p->n_members));
	p->pods_heard = true;
	heard_tell(p);
}

static void on_pod(void *user, struct json_val object)
{
	struct engine_pool *p = user;
	struct inferencepool_pod pod;
	CGN_LIVE(p, POOL_TAG);
	if (!inferencepool_pod_read(object, &pod))
		return;
	for (size_t i = 0; i < p->spec.n_ports; i++)
		port_take(p, &pod, i);
}

static void on_pod_gone(void *user, struct json_val object)
{
	struct engine_pool *p = user;
	struct inferencepool_pod pod;
	CGN_LIVE(p, POOL_TAG);
	if (!inferencepool_pod_read(object, &pod))
		return;
	cgn_list_each_safe (l, &p->members) {
		struct pool_member *m = CGN_CONTAINER(l, struct pool_member, link);
		if (strcmp(m->pod, pod.name) == 0)
			member_gone(p, m);
	}
}

static void lost_note(struct engine_pool *p, char lost[200], bool connected, const char *why)
{
	CGN_LIVE(p, POOL_TAG);
	if (!connected)
		cgn_log_limited(WARN, "router.pool_lost", F_STR("pool", p->text), F_STR("why", why),
			F_U64("nodes_kept", p->n_members));
	(void)cgn_str_copyz(lost, 200, cgn_str_of(connected ? "" : why));
	p->all->ops->heard(p->all->user);
}

static void on_pods_connected(void *user, bool connected, const char *why)
{
	struct engine_pool *p = user;
	lost_note(p, p->pods_lost, connected, why);
}

static const struct k8s_watch_ops pod_ops = {.news = {on_pods_begin, on_pods_end, on_pods_connected},
	.on_object = on_pod,
	.on_gone = on_pod_gone};

/* ---- the pool ---- */

/* There is no pool, or none that makes sense: it has no nodes. */
static void pool_empty(struct engine_pool *p)
{
	k8s_watch_close(&p->pods);
	members_sweep(p, true);
	p->pods_heard = false;
	p->pods_lost[0] = '\0';
}

static void pods_watch(struct engine_pool *p)
{
	char path[PATH_BYTES];
	struct cgn_err err;
	k8s_watch_close(&p->pods);
	p->pods_heard = false;
	(void)snprintf(path, sizeof path, "/api/v1/namespaces/%s/pods", p->space);
	if (!cgn_ok(k8s_watch_open(p->k8s, path, cgn_buf_z(&p->spec.selector), &pod_ops, p, &p->pods, &err)))
		(void)cgn_str_copyz(p->wrong, sizeof p->wrong, cgn_str_of(err.msg));
}

static bool spec_equal(const struct inferencepool *a, const struct inferencepool *b)
{
	return cgn_str_eq(cgn_buf_view(&a->selector), cgn_buf_view(&b->selector)) &&
		a->n_ports == b->n_ports && memcmp(a->ports, b->ports, a->n_ports * sizeof a->ports[0]) == 0;
}

static void on_pool(void *user, struct json_val object)
{
	struct engine_pool *p = user;
	struct inferencepool spec = {.n_ports = 0};
	struct cgn_err err = {.msg = ""};
	CGN_LIVE(p, POOL_TAG);
	p->exists = p->seen = true;
	cgn_rc rc = inferencepool_read(object, &spec, &err);
	(void)cgn_str_copyz(p->wrong, sizeof p->wrong, cgn_str_of(cgn_ok(rc) ? "" : err.msg));
	if (!cgn_ok(rc)) {
		cgn_log_limited(ERROR, "router.pool_refused", F_STR("pool", p->text), F_STR("why", err.msg));
		cgn_buf_fini(&spec.selector);
		pool_empty(p);
		return;
	}
	bool same = p->pods != NULL && spec_equal(&spec, &p->spec);
	if ((spec.n_ports > 1) != (p->spec.n_ports > 1))
		members_sweep(p, true); /* The ids of nodes have a port from now on, or none. */
	cgn_buf_fini(&p->spec.selector);
	p->spec = spec;
	if (!same)
		pods_watch(p);
}

static void pool_lacks(struct engine_pool *p)
{
	if (p->exists || !p->pool_heard)
		cgn_log_limited(WARN, "router.pool_missing", F_STR("pool", p->text),
			F_STR("then", "it has no nodes"));
	p->exists = false;
	p->wrong[0] = '\0';
	pool_empty(p);
}

static void on_pool_gone(void *user, struct json_val object)
{
	(void)object;
	struct engine_pool *p = user;
	CGN_LIVE(p, POOL_TAG);
	pool_lacks(p);
}

static void on_pools_begin(void *user)
{
	struct engine_pool *p = user;
	CGN_LIVE(p, POOL_TAG);
	p->seen = false;
}

static void on_pools_end(void *user)
{
	struct engine_pool *p = user;
	CGN_LIVE(p, POOL_TAG);
	if (!p->seen)
		pool_lacks(p);
	p->pool_heard = true;
	heard_tell(p);
}

static void on_pools_connected(void *user, bool connected, const char *why)
{
	struct engine_pool *p = user;
	lost_note(p, p->pool_lost, connected, why);
}

static const struct k8s_watch_ops pool_ops = {.news = {on_pools_begin, on_pools_end, on_pools_connected},
	.on_object = on_pool,
	.on_gone = on_pool_gone};

/* ---- open and close ---- */

/* Return settings that have the key's file alone. */
static struct config_engine door_settings(const struct config_inference_pool *c)
{
	return (struct config_engine){.url = "http://pod", .api_key_file = c->api_key_file};
}

static void section_of(const struct config_inference_pool *c, char out[80])
{
	(void)snprintf(out, 80, "inference_pools.\"%.50s\"", c->name);
}

CGN_RC engine_pool_open(const struct engine_pool_cfg *cfg, struct engine_pool **out, struct cgn_err *err)
{
	const struct config_inference_pool *c = cfg->pool;
	const struct config_engine ce = door_settings(c);
	char section[80], path[PATH_BYTES], query[PATH_BYTES];
	struct engine_pool *p = CGN_NEW(struct engine_pool);
	*out = p;
	*p = (struct engine_pool){.tag = POOL_TAG, .all = cfg->all, .conf = c, .k8s = cfg->k8s};
	cgn_list_init(&p->members);
	cgn_arena_init(&p->arena, POOL_ARENA);
	section_of(c, section);
	(void)cgn_str_copyz(p->name, sizeof p->name, cgn_str_of(c->pool != NULL ? c->pool : c->name));
	(void)cgn_str_copyz(p->space, sizeof p->space, cgn_str_of(cfg->space));
	(void)snprintf(p->text, sizeof p->text, "%s/%s", p->space, p->name);
	(void)snprintf(p->origin, sizeof p->origin, "InferencePool %s", p->text);
	CGN_TRY(engine_door_open(&p->door, section, &ce, &p->arena, err));
	p->kin = (struct engine_node_kin){.loop = p->all->loop,
		.telemetry = p->all->telemetry,
		.cfg = p->all->config,
		.door = &p->door};
	(void)snprintf(path, sizeof path, "/apis/inference.networking.k8s.io/v1/namespaces/%s/inferencepools",
		p->space);
	(void)snprintf(query, sizeof query, "fieldSelector=metadata.name%%3D%s", p->name);
	return k8s_watch_open(p->k8s, path, query, &pool_ops, p, &p->pools, err);
}

void engine_pool_close(struct engine_pool **take)
{
	struct engine_pool *p = CGN_TAKE_LIVE(take, POOL_TAG);
	if (p == NULL)
		return;
	k8s_watch_close(&p->pods);
	k8s_watch_close(&p->pools);
	cgn_list_each_safe (l, &p->members)
		member_free(p, CGN_CONTAINER(l, struct pool_member, link));
	engine_door_close(&p->door);
	cgn_buf_fini(&p->spec.selector);
	cgn_arena_fini(&p->arena);
	p->tag = 0;
	free(p);
}

bool engine_pool_is_heard(const struct engine_pool *p)
{
	return p->pool_heard && (p->pods_heard || !p->exists || p->wrong[0] != '\0');
}

bool engine_pool_is_away(const struct engine_pool *p)
{
	return p->pool_lost[0] != '\0' || p->pods_lost[0] != '\0';
}

void engine_pool_status(const struct engine_pool *p, struct engine_pool_status *out)
{
	const char *lost = p->pool_lost[0] != '\0' ? p->pool_lost : p->pods_lost;
	*out = (struct engine_pool_status){.name = p->text,
		.nodes = p->n_members,
		.connected = lost[0] == '\0'};
	if (lost[0] != '\0')
		(void)snprintf(out->why, sizeof out->why, "the Kubernetes API: %s", lost);
	else if (!p->pool_heard)
		(void)snprintf(out->why, sizeof out->why, "the Kubernetes API was not heard yet");
	else if (!p->exists)
		(void)snprintf(out->why, sizeof out->why, "there is no InferencePool %s", p->text);
	else if (p->wrong[0] != '\0')
		(void)snprintf(out->why, sizeof out->why, "the pool makes no sense: %s", p->wrong);
	else if (p->refused > 0)
		(void)snprintf(out->why, sizeof out->why, "%zu pods are not nodes: the router's log has why",
			p->refused);
	else if (p->n_members == 0)
		(void)snprintf(out->why, sizeof out->why,
			p->pods_heard ? "no ready pod has the labels of its selector"
				      : "its pods were not heard yet");
}

void engine_pool_check(const struct config_inference_pool *pool, struct svc_problems *out)
{
	const struct config_engine ce = door_settings(pool);
	char section[80];
	section_of(pool, section);
	engine_door_check(section, &ce, out);
}
