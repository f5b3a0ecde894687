/* SPDX-License-Identifier: Apache-2.0 */
/* admin: /nodes, /index, /models and /queue of the admin port; explain_query.c has /explain, sessions_query.c /sessions. */
#include "base/pb/pb_json.h"
#include "joint/daemon/page/page.h"
#include "router/control/control/engines.h"
#include "router/control/control/models.h"
#include "router/control/control/peers.h"
#include "router/control/control/watch.h"
#include "router/control/scaler/scaler.h"
#include "router/control/service/service_priv.h"
#include "router/request/account/sessions.h"
#include "router/request/admission/admission.h"
#include "router/request/calibration/calibration.h"
#include "router/shared/rules/tokenizer_set.h"

#define DIGESTS_MAX 65536 /* Lines of one answer, 20 bytes each. */

static void put_residency(struct json_out *j, const struct router *r, const struct cluster_node *n)
{
	static const char *const tiers[BLOCK_TIERS] = {"gpu", "ram", "ssd", "remote"};
	struct router_residency_status k;
	char sums[24];
	router_residency_status(r, n, &k);
	(void)snprintf(sums, sizeof sums, "%016llx", (unsigned long long)k.sums);
	json_open(j, '{');
	json_key_z(j, "source", k.source);
	json_key_z(j, "state", k.state);
	json_key_f64(j, "staleness_seconds", (double)(k.staleness / CGN_MSEC) / 1e3);
	json_key_f64(j, "trust", k.trust);
	json_key_u64(j, "blocks", k.blocks);
	for (size_t t = 0; t < BLOCK_TIERS; t++) {
		json_key_u64(j, tiers[t], k.tier_blocks[t]);
	}
	json_key_z(j, "sums", sums);
	json_key_u64(j, "recorded", k.recorded);
	json_close(j, '}');
}

static void put_others(struct json_out *j, const struct node_stats *stats)
{
	json_open(j, '{');
	json_key_u64(j, "inflight", atomic_load_explicit(&stats->others, memory_order_relaxed));
	json_key_u64(j, "queued_tokens", atomic_load_explicit(&stats->others_tokens, memory_order_relaxed));
	json_key_u64(j, "decoding", atomic_load_explicit(&stats->others_decoding, memory_order_relaxed));
	json_close(j, '}');
}

static void put_breaker(struct json_out *j, uint64_t word, cgn_nsec now)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	breaker_text(word, now, &text);
	json_open(j, '{');
	json_key_z(j, "state", breaker_state_text(breaker_state(word, now)));
	json_key_z(j, "why", breaker_reason_label(breaker_why(word)));
	json_key_u64(j, "left_ms", breaker_left(word, now) / CGN_MSEC);
	json_key_str(j, "text", cgn_buf_view(&text));
	json_close(j, '}');
}

static const char *const role_names[] = {"both", "prefill",
	"decode"}; /* Indexed by COGNITORA__V1__ROLE__*. */

/* The node's measured and learned power; null: unknown. */
static void put_energy(struct json_out *j, const struct energy_board *b, uint16_t slot, cgn_nsec now)
{
	struct energy_curve c;
	double measured = energy_board_node_watts(b, slot, now);
	json_key(j, "node_watts");
	if (measured > 0)
		json_put_f64(j, measured);
	else
		json_put_null(j);
	unsigned flags = energy_board_get(b, slot, &c);
	json_key(j, "watts");
	if (!energy_known(&c)) {
		json_put_null(j);
		return;
	}
	json_open(j, '{');
	json_key_f64(j, "idle", (double)c.decode[0]);
	json_key_open(j, "decode", '[');
	for (size_t k = 1; k < ENERGY_KNOTS; k++)
		json_put_f64(j, (double)c.decode[k]);
	json_close(j, ']');
	json_key_f64(j, "prefill", (double)c.prefill);
	json_key_bool(j, "hot", (flags & ENERGY_HOT) != 0);
	json_close(j, '}');
}

static void put_node(struct json_out *j, struct router *r, const struct cluster_node *n)
{
	json_open(j, '{');
	json_key_z(j, "id", n->info->id);
	json_key_z(j, "address", n->address);
	json_key_z(j, "origin", router_watch_origin(r, n));
	json_key_z(j, "role",
		role_names[n->info->role <= COGNITORA__V1__ROLE__ROLE_DECODE ? n->info->role : 0]);
	pb_json_members(j, n->info, "kv{quic_address rack region}");
	json_key_z(j, "state", node_state_text(n->state));
	char reason[ROUTER_REASON_BYTES];
	router_watch_reason(r, n, reason, sizeof reason);
	json_key_z(j, "reason", reason);
	json_key_bool(j, "cordoned", n->cordoned);
	json_key_z(j, "version", n->info->version);
	json_key_u64(j, "router_inflight", cluster_inflight(r->members.cluster, n->slot));
	json_key(j, "breaker");
	put_breaker(j,
		atomic_load_explicit(&r->members.cluster->stats[n->slot].breaker, memory_order_relaxed),
		cgn_loop_now(r->loop));
	json_key(j, "cache");
	put_residency(j, r, n);
	json_key_u64(j, "last_seen_ms",
		n->heard_at > 0 ? cgn_since(cgn_loop_now(r->loop), n->heard_at) / CGN_MSEC : 0);
	json_key(j, "load");
	pb_json_select(j, &n->load,
		"inflight running waiting queued_tokens decoding yours foreign kv_usage power_headroom requests_total "
		"gpus gpu_memory_used gpu_memory_total gpu_power_mw gpu_power_limit_mw");
	put_energy(j, r->shared.choice.energy, n->slot, cgn_loop_now(r->loop));
	json_key_u64(j, "load_age_ms", router_load_age(r, n) / CGN_MSEC);
	json_key(j, "others");
	put_others(j, &r->members.cluster->stats[n->slot]);
	pb_json_members(j, n->info,
		"engines{name kind ready models models_left_out facts{model state load_ms context} slots residency trouble "
		"handoff{kind terms host port} swap{state loaded load_ms memory_bytes expires_unix_ms why}}");
	json_close(j, '}');
}

static void nodes_get(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)h;
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct json_out j = json_out_to(&reply->body);
	json_open(&j, '{');
	json_key_z(&j, "cluster", r->cluster_name);
	json_key_z(&j, "policy", route_policy_text(r->published.rules->route.policy));
	json_key_z(&j, "state_backend", r->members.backend);
	json_key_bool(&j, "state_connected", r->members.connected);
	json_key_bool(&j, "state_stale", r->members.knowledge == STATE_STALE);
	json_key(&j, "pools");
	router_pools_json(r, &j);
	json_key_open(&j, "nodes", '[');
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++)
		if (r->members.cluster->by_slot[i] != NULL)
			put_node(&j, r, r->members.cluster->by_slot[i]);
	json_close(&j, ']');
	json_close(&j, '}');
}

/* ---- /index ---- */

static void index_put(struct json_out *j, const struct router *r)
{
	struct kvindex_stats s;
	kvindex_stats(r->shared.choice.index, &s);
	json_key_u64(j, "blocks", s.blocks);
	json_key_u64(j, "memberships", s.memberships);
	json_key_u64(j, "bytes", s.bytes);
	json_key_u64(j, "budget_bytes", s.max_bytes);
	json_key_u64(j, "shed_blocks", s.shed_blocks);
	json_key_u64(j, "shed_memberships", s.shed_memberships);
	json_key_open(j, "record", '{');
	json_key_u64(j, "blocks", route_record_blocks(r->shared.choice.record));
	json_key_u64(j, "bytes", router_record_bytes(r));
	json_close(j, '}');
}

static void put_digest(void *user, uint64_t digest, unsigned tiers)
{
	cgn_buf_fmt(user, "%016llx %u\n", (unsigned long long)digest, tiers);
}

/* Write one line for each block: its digest and its mask of tiers. The digests of a node with many blocks are
 * given one range at a time. */
static void digests_put(const struct router *r, const struct cluster_node *n, struct cgn_str range,
	struct svc_admin_reply *reply)
{
	uint64_t one = BLOCK_RANGES;
	uint64_t blocks = n->has_index_id ? kvindex_count(r->shared.choice.index, n->index_id) : 0;
	if (range.n > 0 && (!cgn_str_u64(range, &one) || one >= BLOCK_RANGES)) {
		svc_admin_error(reply, 400, "bad_range", "range is a number from 0 to 255");
		return;
	}
	if (range.n == 0 && blocks > DIGESTS_MAX) {
		svc_admin_error(reply, 400, "too_many",
			"the node holds too many blocks for one answer: ask for range=0 to 255, one at a time");
		return;
	}
	reply->content_type = "text/plain; charset=utf-8";
	if (blocks > 0)
		kvindex_each(r->shared.choice.index, n->index_id, (unsigned)one, put_digest, &reply->body);
}

static void index_node(struct router *r, const struct http_head *h, struct cgn_str id,
	struct svc_admin_reply *reply)
{
	char name[PROTO_MAX_ID + 1];
	const struct cluster_node *n =
		cgn_str_copyz(name, sizeof name, id) ? cluster_find(r->members.cluster, name) : NULL;
	struct json_out j = json_out_to(&reply->body);
	if (n == NULL)
		svc_admin_error(reply, 404, "no_node", "no node of this name is known here");
	else if (cgn_str_is(http_query_get(h->path, "format"), "digests"))
		digests_put(r, n, http_query_get(h->path, "range"), reply);
	else
		put_residency(&j, r, n);
}

static void index_get(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct cgn_str node = http_query_get(h->path, "node");
	if (node.n > 0) {
		index_node(r, h, node, reply);
		return;
	}
	struct json_out j = json_out_to(&reply->body);
	json_open(&j, '{');
	index_put(&j, r);
	json_key_open(&j, "nodes", '{');
	for (uint16_t i = 0; i < ROUTE_MAX_NODES; i++) {
		if (r->members.cluster->by_slot[i] == NULL)
			continue;
		json_key(&j, r->members.cluster->by_slot[i]->info->id);
		put_residency(&j, r, r->members.cluster->by_slot[i]);
	}
	json_close(&j, '}');
	json_close(&j, '}');
}

/* ---- /models ---- */

struct models_listing {
	struct router *r;
	struct json_out j;
};

static void put_tokenizers(struct json_out *j, const struct gw_tokenizer_set *k)
{
	json_key_str(j, "tokenizer", k->tokenizer_from);
	json_key(j, "chat_template");
	if (k->template_from != NULL)
		json_put_z(j, k->template_from);
	else
		json_put_null(j);
	json_key_z(j, "content_format", k->chat.format == PROMPT_PARTS ? "openai" : "string");
}

static void put_model(void *user, struct cgn_str name)
{
	struct models_listing *l = user;
	struct router_model m = router_model_of(l->r, name);
	json_open(&l->j, '{');
	json_key_str(&l->j, "name", name);
	json_key_u64(&l->j, "ready_nodes", m.n_ready);
	json_key_z(&l->j, "tokens", gw_tokens_text(m.mode));
	json_key_z(&l->j, "why", m.why);
	if (m.tokenizers != NULL)
		put_tokenizers(&l->j, m.tokenizers);
	json_key_u64(&l->j, m.mode == GW_BYTES ? "block_bytes" : "block_tokens",
		m.mode == GW_BYTES ? m.block_bytes : m.block_tokens);
	json_close(&l->j, '}');
}

static void models_get(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)h;
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct models_listing l = {.r = r, .j = json_out_to(&reply->body)};
	json_open(&l.j, '{');
	json_key_open(&l.j, "models", '[');
	router_models_each(r, put_model, &l);
	json_close(&l.j, ']');
	json_close(&l.j, '}');
}

/* ---- /queue ---- */

static void queue_get(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)h;
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct json_out j = json_out_to(&reply->body);
	json_open(&j, '{');
	json_key_u64(&j, "max_queue", r->published.rules->max_queue);
	json_key_open(&j, "queues", '[');
	gw_admission_json(r->shared.admission, &j);
	json_close(&j, ']');
	json_close(&j, '}');
}

static void history_get(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)h;
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct json_out j = json_out_to(&reply->body);
	router_history_json(r, &j);
}

static void autoscaler_get(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)h;
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct json_out j = json_out_to(&reply->body);
	router_scaler_json(r->scaler, &j);
}

static void peers_get(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)h;
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct json_out j = json_out_to(&reply->body);
	router_peers_json(r, &j);
}

static void cascades_get(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)h;
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	struct json_out j = json_out_to(&reply->body);
	gw_calibrations_json(r->shared.calibrations, &j);
}

const struct svc_admin_route router_admin_routes[] = {{"GET", "/nodes", nodes_get, ACTION_STATUS_READ},
	{"POST", "/nodes/*/cordon", router_admin_order, ACTION_NODE_CORDON},
	{"POST", "/nodes/*/uncordon", router_admin_order, ACTION_NODE_CORDON},
	{"GET", "/history", history_get, ACTION_STATUS_READ},
	{"GET", "/page/*", page_get, ACTION_STATUS_READ},
	{"POST", "/playground/*", router_admin_play, ACTION_PLAYGROUND_USE},
	{"GET", "/models", models_get, ACTION_STATUS_READ}, {"GET", "/index", index_get, ACTION_STATUS_READ},
	{"GET", "/queue", queue_get, ACTION_STATUS_READ},
	{"GET", "/sessions", router_admin_sessions, ACTION_EXPLAIN_READ},
	{"GET", "/autoscaler", autoscaler_get, ACTION_STATUS_READ},
	{"GET", "/peers", peers_get, ACTION_STATUS_READ},
	{"GET", "/cascades", cascades_get, ACTION_STATUS_READ},
	{"GET", "/usage", router_admin_usage, ACTION_USAGE_READ},
	{"GET", "/tenants", router_admin_tenants, ACTION_USAGE_READ},
	{"GET", "/keys", router_admin_keys, ACTION_USAGE_READ},
	{"GET", "/explain", router_admin_explain, ACTION_EXPLAIN_READ},
	{"GET", "/explain/*", router_admin_explain, ACTION_EXPLAIN_READ}};
const size_t router_n_admin_routes = CGN_COUNT(router_admin_routes);
