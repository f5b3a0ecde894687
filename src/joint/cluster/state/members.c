/* SPDX-License-Identifier: Apache-2.0 */
/* members: the last known membership in a file of cluster.state_dir, so that a router that starts while etcd is away,
 * or before its agents have announced themselves again, knows its nodes. One JSON document; it is written at most
 * once per WRITE_EVERY, and replaced as a whole, by the router that holds the place (place.c). */
#include <time.h>

#include "base/json/json.h"
#include "base/log/log.h"
#include "joint/cluster/state/state_priv.h"

#define WRITE_EVERY (2 * CGN_SEC)
#define MAX_BYTES   ((size_t)64 * 1024 * 1024)
#define FORMAT      "cognitora members 1"

/* ---- writing ---- */

static void node_put(void *arg, struct roster_entry *e)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf one = {.n = 0};
	struct json_out *o = arg;
	proto_node_to_json(e->node, &one);
	json_put_raw(o, cgn_buf_view(&one));
	o->b->bad = o->b->bad || one.bad;
}

static void cordon_put(void *arg, struct roster_entry *e)
{
	json_put_z(arg, e->id);
}

static void members_put(const struct state_members *m, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	json_open(&o, '{');
	json_key_z(&o, "format", FORMAT);
	json_key_z(&o, "cluster", m->s->cluster);
	json_key_u64(&o, "written", cgn_clock_wall_ms() / 1000);
	json_key_open(&o, "nodes", '[');
	roster_each(&m->s->nodes, node_put, &o);
	json_close(&o, ']');
	json_key_open(&o, "cordons", '[');
	roster_each(&m->s->cordons, cordon_put, &o);
	json_close(&o, ']');
	json_key_str(&o, "policy", cgn_buf_view(&m->s->documents[STATE_POLICY].text));
	json_key_str(&o, "models", cgn_buf_view(&m->s->documents[STATE_MODELS].text));
	json_close(&o, '}');
}

static void members_write(struct cgn_timer *t)
{
	struct state_members *m = CGN_CONTAINER(t, struct state_members, timer);
	struct cgn_buf text = {.n = 0};
	struct cgn_err other;
	if (statefile_is_busy(m->file) || !state_place_hold(&m->s->place, &other)) {
		cgn_timer_set(t, WRITE_EVERY);
		return;
	}
	members_put(m, &text);
	statefile_write(m->file, &text);
}

/* Return true if the present membership may replace the file: all of it was heard, or the file had no node. */
static bool members_may_write(const struct state_watch *s)
{
	bool nothing = s->backend->renew != NULL && s->members.recalled && s->n_recalled == 0;
	return s->knowledge == STATE_HEARD || nothing;
}

void state_members_changed(struct state_watch *s)
{
	if (s->members.s != NULL && s->members.timer.at == 0 && members_may_write(s))
		cgn_timer_set(&s->members.timer, WRITE_EVERY);
}

/* ---- reading ---- */

static CGN_RC nodes_read(struct state_watch *s, struct json_val nodes, struct cgn_err *err)
{
	struct json_val one;
	struct roster_entry *e;
	if (nodes.type != JSON_ARRAY)
		return CGN_FAIL(err, INVALID, "it has no nodes");
	for (struct json_iter it = json_iter_of(nodes); json_next_elem(&it, &one);) {
		CGN_ON_EXIT(proto_node_free) Cognitora__V1__Node *node = NULL;
		CGN_TRY(proto_node_from_json(one.raw, &node, err));
		if (roster_find(&s->nodes, node->id) != NULL)
			continue; /* heard already */
		CGN_TRY(state_node_seen(s, node, &e, err));
		e->recalled = true;
		s->n_recalled++;
		if (s->backend->renew != NULL)
			s->backend->renew(s, e, &(uint64_t){0});
	}
	return CGN_OK;
}

static void cordons_read(struct state_watch *s, struct json_val cordons)
{
	struct json_val one;
	char id[PROTO_MAX_ID + 1];
	for (struct json_iter it = json_iter_of(cordons); json_next_elem(&it, &one);) {
		struct cgn_str raw = {one.raw.p + 1, one.raw.n >= 2 ? one.raw.n - 2 : 0};
		if (one.type == JSON_STRING && proto_node_id_ok(raw) && cgn_str_copyz(id, sizeof id, raw))
			state_cordon_seen(s, id, true);
	}
}

/* Take the members from the file's |text|. A node that is not sound ends the reading: the nodes before it
 * stay. */
static CGN_RC members_read(struct state_watch *s, struct cgn_str text, uint64_t *written, struct cgn_err *err)
{
	enum { FORMAT_KEY, CLUSTER, WRITTEN, NODES, CORDONS, POLICY, MODELS, N };
	static const char *const keys[N] = {"format", "cluster", "written", "nodes", "cordons", "policy",
		"models"};
	struct json_val doc, v[N];
	CGN_ON_EXIT(cgn_buf_fini)
	struct cgn_buf cluster = {.n = 0}, policy = {.n = 0}, format = {.n = 0}, models = {.n = 0};
	CGN_TRY(json_parse(text, &doc, NULL, err));
	json_pick(doc, keys, N, v);
	for (size_t i = 0; i < MODELS; i++) /* Files of earlier versions have no models. */
		if (v[i].raw.p == NULL)
			return CGN_FAIL(err, INVALID, "it has no \"%s\"", keys[i]);
	bool typed = v[FORMAT_KEY].type == JSON_STRING && v[CLUSTER].type == JSON_STRING &&
		v[POLICY].type == JSON_STRING && v[CORDONS].type == JSON_ARRAY;
	if (typed) {
		json_str_to(v[FORMAT_KEY], &format);
		json_str_to(v[CLUSTER], &cluster);
		json_str_to(v[POLICY], &policy);
		if (v[MODELS].raw.p != NULL && v[MODELS].type == JSON_STRING)
			json_str_to(v[MODELS], &models);
	}
	if (!typed || !cgn_str_is(cgn_buf_view(&format), FORMAT) || !json_u64(v[WRITTEN], written))
		return CGN_FAIL(err, INVALID, "its format is not \"%s\"", FORMAT);
	if (!cgn_str_is(cgn_buf_view(&cluster), s->cluster))
		return CGN_FAIL(err, INVALID, "it is of another cluster");
	if (!s->members.nodes_only) {
		cordons_read(s, v[CORDONS]);
		state_document_seen(s, STATE_POLICY, cgn_buf_view(&policy));
		state_document_seen(s, STATE_MODELS, cgn_buf_view(&models));
	}
	return nodes_read(s, v[NODES], err);
}

void state_members_recall(struct state_watch *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct state_members *m = &s->members;
	struct cgn_err err;
	uint64_t written = 0, now = cgn_clock_wall_ms() / 1000;
	if (m->s == NULL || m->recalled || s->knowledge == STATE_HEARD)
		return;
	m->recalled = true;
	if (!statefile_read(m->file, MAX_BYTES, &text))
		return;
	if (!cgn_ok(members_read(s, cgn_buf_view(&text), &written, &err)))
		cgn_log(ERROR, "state.members_unreadable", F_STR("file", statefile_path(m->file)),
			F_STR("why", err.msg), F_STR("then", "the rest of it is ignored"));
	if (s->n_recalled == 0)
		return;
	cgn_log(WARN, "state.members_stale", F_U64("nodes", s->n_recalled),
		F_STR("file", statefile_path(m->file)), F_U64("age_s", cgn_since(now, written)),
		F_STR("then", "requests go to those of them that answer, until the membership is heard"));
	state_knows(s, STATE_STALE);
}

/* ---- open and close ---- */

void state_members_open(struct state_watch *s, const struct config *cfg, bool nodes_only)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	struct state_members *m = &s->members;
	cgn_buf_fmt(&path, "%s/%s.members", cfg->cluster.state_dir, s->cluster);
	m->file = statefile_open(s->loop, cgn_buf_z(&path), "membership");
	m->s = s;
	m->nodes_only = nodes_only;
	cgn_timer_init(&m->timer, s->loop, members_write);
}

void state_members_close(struct state_watch *s)
{
	struct state_members *m = &s->members;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct cgn_err other;
	bool due = m->s != NULL && m->timer.at != 0 && state_place_hold(&s->place, &other);
	if (m->s != NULL)
		cgn_timer_cancel(&m->timer);
	if (due)
		members_put(m, &text);
	statefile_close(&m->file, due && !text.bad ? &text : NULL);
	*m = (struct state_members){.s = NULL};
}
