/* SPDX-License-Identifier: Apache-2.0 */
/* sessions_query: /sessions of the admin port: a page of the sessions of agents. */
#include "base/codec/codec.h"
#include "router/control/service/documents.h"
#include "router/request/account/sessions.h"

#define SESSIONS_PAGE 100
#define NAME_MOST     512 /* More bytes than parameters.def lets a name have. */

/* Return the nearest tier in which the node's engine holds the conversation's last prompt, "gone", or NULL where nothing tells
 * what the node holds. */
static const char *kv_find(void *user, const struct session_place *place)
{
	static const char *const tiers[BLOCK_TIERS] =
		{[BLOCK_GPU] = "gpu", [BLOCK_RAM] = "ram", [BLOCK_SSD] = "ssd", [BLOCK_REMOTE] = "remote"};
	const struct router *r = user;
	const struct cluster_node *n =
		place->slot < ROUTE_MAX_NODES ? r->members.cluster->by_slot[place->slot] : NULL;
	if (place->last == 0 || n == NULL || route_hash(n->info->id, strlen(n->info->id)) != place->node ||
		!n->fed || !n->has_index_id)
		return NULL;
	unsigned held = kvindex_tiers(r->shared.choice.index, n->index_id, place->last);
	for (unsigned t = 0; t < BLOCK_TIERS; t++)
		if ((held & BLOCK_TIER_BIT(t)) != 0)
			return tiers[t];
	return "gone";
}

/* Read a number of the query, which is checked (parameters.def); an absent one stays. */
static void number_read(struct cgn_str path, const char *name, size_t *out)
{
	uint64_t n = 0;
	if (cgn_str_u64(http_query_get(path, name), &n))
		*out = (size_t)n;
}

/* Names that are looked for, decoded. */
struct names {
	char tenant[NAME_MOST], model[NAME_MOST], node[NAME_MOST];
};

/* Read a name of the query; an absent one is empty. Names are kept up to SESSION_TEXT bytes, so that only these count. */
static struct cgn_str name_read(struct cgn_str path, const char *key, char room[NAME_MOST])
{
	struct cgn_str raw = http_query_get(path, key);
	CGN_MUST(raw.n < NAME_MOST); /* router_query_check refuses longer ones. */
	size_t n = percent_get(room, raw);
	return (struct cgn_str){room, n < SESSION_TEXT ? n : SESSION_TEXT};
}

static void query_read(struct cgn_str path, struct names *names, struct session_query *q)
{
	struct cgn_str state = http_query_get(path, "state"), sort = http_query_get(path, "sort");
	q->tenant = name_read(path, "tenant", names->tenant);
	q->model = name_read(path, "model", names->model);
	q->node = name_read(path, "node", names->node);
	number_read(path, "last", &q->most);
	number_read(path, "skip", &q->skip);
	if (state.n > 0)
		q->state = session_state_find(state);
	if (sort.n > 0)
		q->sort = session_sort_find(sort);
}

bool router_fill_sessions(const struct document_query *d, Cognitora__V1__Sessions *to)
{
	struct router *r = d->r;
	struct session_query q = {.state = SESSION_STATES, .most = SESSIONS_PAGE, .kv = kv_find, .user = r};
	struct names names;
	if (r->shared.sessions == NULL) {
		svc_admin_error(d->reply, 404, "no_record",
			"sessions are not kept here: router.sessions is 0");
		return false;
	}
	query_read(d->h->path, &names, &q);
	gw_sessions_fill(r->shared.sessions, &q, cgn_loop_now(r->loop), d->t, to);
	return true;
}
