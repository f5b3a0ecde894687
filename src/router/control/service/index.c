/* SPDX-License-Identifier: Apache-2.0 */
/* index: the router's index of the nodes' KV caches, as /index tells it. */
#include "base/pb/pb_json.h"
#include "router/control/control/watch.h"
#include "router/control/service/documents.h"

#define DIGESTS_MAX 65536 /* Lines of one answer, 20 bytes each. */

static Cognitora__V1__NodeCache *cache_new(const struct router *r, const struct cluster_node *n,
	struct pb_tree *t)
{
	Cognitora__V1__NodeCache *cache = PB_NEW(t, node_cache);
	router_cache_fill(r, n, t, cache);
	return cache;
}

static void node_fill(const struct router *r, const struct cluster_node *n, struct pb_tree *t,
	Cognitora__V1__IndexNode *to)
{
	to->id = n->info->id;
	to->cache = cache_new(r, n, t);
}

static void record_fill(const struct router *r, Cognitora__V1__IndexRecord *to)
{
	to->blocks = route_record_blocks(r->shared.choice.record);
	to->bytes = router_record_bytes(r);
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
	(void)cgn_str_u64(range, &one); /* Checked: parameters.def. */
	if (range.n == 0 && blocks > DIGESTS_MAX) {
		svc_admin_error(reply, 400, "too_many",
			"the node holds too many blocks for one answer: ask for range=0 to 255, one at a time");
		return;
	}
	reply->content_type = "text/plain; charset=utf-8";
	if (blocks > 0)
		kvindex_each(r->shared.choice.index, n->index_id, (unsigned)one, put_digest, &reply->body);
}

/* Answer with one node's part. */
static void node_answer(struct router *r, const struct http_head *h, struct cgn_str id, struct pb_tree *t,
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
		pb_json_put(&j, cache_new(r, n, t), PB_JSON_PLAIN);
}

bool router_fill_index(const struct document_query *q, Cognitora__V1__Index *to)
{
	struct router *r = q->r;
	struct pb_tree *t = q->t;
	struct cgn_str node = http_query_get(q->h->path, "node");
	struct kvindex_stats s;
	if (node.n > 0) {
		node_answer(r, q->h, node, t, q->reply);
		return false;
	}
	kvindex_stats(r->shared.choice.index, &s);
	to->blocks = s.blocks;
	to->memberships = s.memberships;
	to->bytes = s.bytes;
	to->budget_bytes = s.max_bytes;
	to->shed_blocks = s.shed_blocks;
	to->shed_memberships = s.shed_memberships;
	record_fill(r, to->record = PB_NEW(t, index_record));
	for (uint16_t i = 0; i < ROUTE_MAX_NODES; i++)
		if (r->members.cluster->by_slot[i] != NULL)
			node_fill(r, r->members.cluster->by_slot[i], t, PB_ADD(t, to, nodes, index_node));
	return true;
}
