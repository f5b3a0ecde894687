/* SPDX-License-Identifier: Apache-2.0 */
/* admin: the routes of the admin port, and /index and /history. Documents are in documents.def, the other answers in
 * files of their own. */
#include "base/pb/pb_json.h"
#include "joint/daemon/page/page.h"
#include "router/control/control/watch.h"
#include "router/control/service/documents.h"

#define DIGESTS_MAX 65536 /* Lines of one answer, 20 bytes each. */
#define CACHE_LIMIT ((size_t)4 << 10)

/* Write the record of the node's cache. */
static void cache_put(struct json_out *j, const struct router *r, const struct cluster_node *n)
{
	CGN_ON_EXIT(pb_tree_fini) struct pb_tree t;
	Cognitora__V1__NodeCache cache = COGNITORA__V1__NODE_CACHE__INIT;
	pb_tree_init(&t, CACHE_LIMIT);
	router_cache_fill(r, n, &t, &cache);
	pb_json_put(j, &cache, PB_JSON_PLAIN);
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
		cache_put(&j, r, n);
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
		cache_put(&j, r, r->members.cluster->by_slot[i]);
	}
	json_close(&j, '}');
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

const struct svc_admin_route router_admin_routes[] = {
#define DOCUMENT(id, path, action, Type, type, select, help) {"GET", path, router_document_get, action},
#include "policy/node/proto/documents.def"
#undef DOCUMENT
	{"POST", "/nodes/*/cordon", router_admin_order, ACTION_NODE_CORDON},
	{"POST", "/nodes/*/uncordon", router_admin_order, ACTION_NODE_CORDON},
	{"GET", "/history", history_get, ACTION_STATUS_READ},
	{"GET", "/page/*", page_get, ACTION_STATUS_READ},
	{"POST", "/playground/*", router_admin_play, ACTION_PLAYGROUND_USE},
	{"GET", "/index", index_get, ACTION_STATUS_READ},
	{"GET", "/usage", router_admin_usage, ACTION_USAGE_READ},
	{"GET", "/keys", router_admin_keys, ACTION_USAGE_READ},
	{"GET", "/explain/*", router_admin_explain, ACTION_EXPLAIN_READ}};
const size_t router_n_admin_routes = CGN_COUNT(router_admin_routes);
