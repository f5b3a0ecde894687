/* SPDX-License-Identifier: Apache-2.0 */
/* link: connections to agents. */
#include "router/shared/worker/link.h"

#include <stdlib.h>

#include "joint/node/enginecall/enginecall.h"

#define LINK_TAG       0x64112e01U
#define ENGINE_CONNECT (500 * CGN_MSEC) /* an engine that takes longer is asked by its agent */
#define AGENT_CONNECT  (2 * CGN_SEC)    /* short: another node may take the request */
#define LINK_CONNS     2                /* so that one stalled TCP connection does not hold up all calls */

static void link_free(struct gw_link *l)
{
	CGN_LIVE(l, LINK_TAG);
	CGN_MUST(l->calls == 0);
	grpc_channel_free(&l->channel);
	http_client_free(&l->engine);
	free(l->engine_address);
	free(l->authorization);
	free(l->url);
	free(l->address);
	l->tag = 0;
	free(l);
}

/* Take |l| out of the worker. Open calls go on; the last of them frees the link. */
static void link_retire(struct gw_worker *w, struct gw_link *l)
{
	CGN_LIVE(l, LINK_TAG);
	CGN_MUST(w->links[l->slot] == l);
	w->links[l->slot] = NULL;
	l->retired = true;
	if (l->calls == 0)
		link_free(l);
}

static CGN_RC link_new(struct gw_worker *w, const struct view_node *node, struct gw_link **out,
	struct cgn_err *err)
{
	struct gw_link *l = CGN_NEW(struct gw_link);
	l->address = cgn_str_dupz(cgn_str_of(node->address));
	l->tag = LINK_TAG;
	l->slot = node->slot;
	if (node->direct.door != NULL) {
		*out = l;
		return CGN_OK;
	}
	struct grpc_channel_cfg cfg = {
		.addr = l->address,
		.tls = w->shared->agent_tls,
		.server_name = w->shared->agent_name,
		.connect_timeout = AGENT_CONNECT,
		.max_conns = LINK_CONNS,
	};
	cgn_rc rc = grpc_channel_new(w->loop, &cfg, &l->channel, err);
	if (!cgn_ok(rc)) {
		free(l->address);
		free(l);
		return rc;
	}
	*out = l;
	return CGN_OK;
}

/* Copy the way to an engine without an agent. */
static void link_door(struct gw_link *l, const struct cluster_door *d)
{
	l->url = CGN_NEW(struct weburl);
	*l->url = d->url;
	if (d->authorization != NULL)
		l->authorization = cgn_str_dupz(cgn_str_of(d->authorization));
}

/* Forget a pool that could not be made. */
static void link_engine_forget(struct gw_link *l)
{
	free(l->engine_address);
	free(l->authorization);
	free(l->url);
	l->engine_address = l->authorization = NULL;
	l->url = NULL;
}

bool gw_link_engine(struct gw_worker *w, struct gw_link *l, const struct view_node *node)
{
	const struct view_direct *d = &node->direct;
	if (l->engine != NULL)
		return strcmp(l->engine_address, d->address) == 0;
	l->engine_address = cgn_str_dupz(cgn_str_of(d->address));
	bool bare = d->door != NULL;
	if (bare)
		link_door(l, d->door);
	/* gw_direct_start opens no more calls than allowed; calls that were cancelled may still be closing */
	const struct http_client_cfg cfg = {.addr = l->engine_address,
		.authority = bare ? d->door->url.authority : NULL,
		.tls = bare ? d->door->tls : NULL,
		.proto = HTTP_1,
		.max_conns = d->connections,
		.connect_timeout = bare ? AGENT_CONNECT : ENGINE_CONNECT,
		.idle_timeout = ENGINECALL_IDLE};
	if (cgn_ok(http_client_new(w->loop, &cfg, &l->engine, NULL)))
		return true;
	link_engine_forget(l);
	return false;
}

/* Update the metric cells: the node may have announced a new id. */
static void link_cells_update(struct telemetry *t, struct gw_link *l, const struct view_node *node)
{
	if (l->node_id_hash == node->node_id_hash)
		return;
	l->node_id_hash = node->node_id_hash;
	l->predicted = METRIC_OF(t, CACHED_TOKENS, node->id, "predicted");
	l->actual = METRIC_OF(t, CACHED_TOKENS, node->id, "actual");
}

CGN_RC gw_link_get(struct gw_worker *w, const struct view_node *node, struct gw_link **out,
	struct cgn_err *err)
{
	CGN_LIVE(w, GW_WORKER_TAG);
	if (w->links[node->slot] == NULL)
		CGN_TRY(link_new(w, node, &w->links[node->slot], err));
	*out = w->links[node->slot];
	link_cells_update(w->shared->telemetry, *out, node);
	(*out)->calls++;
	return CGN_OK;
}

static void link_free_buried(struct cgn_grave *g)
{
	link_free(CGN_CONTAINER(g, struct gw_link, grave));
}

void gw_link_release(struct gw_worker *w, struct gw_link **take)
{
	struct gw_link *l = CGN_TAKE(take);
	CGN_LIVE(w, GW_WORKER_TAG);
	CGN_LIVE(l, LINK_TAG);
	CGN_MUST(l->calls > 0);
	/* Free after this turn: this may be a callback of the last call, inside the channel. */
	if (--l->calls == 0 && l->retired)
		cgn_loop_bury(w->loop, &l->grave, link_free_buried);
}

void gw_links_sweep(struct gw_worker *w)
{
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++) {
		struct gw_link *l = w->links[i];
		if (l == NULL)
			continue;
		const struct view_node *node = view_node_at(w->view, l->slot);
		bool moved = node != NULL && node->direct.address != NULL && l->engine_address != NULL &&
			strcmp(node->direct.address, l->engine_address) != 0;
		bool kind_changed = node != NULL && (node->direct.door == NULL) != (l->channel != NULL);
		if (node == NULL || moved || kind_changed || strcmp(node->address, l->address) != 0)
			link_retire(w, l);
	}
}

void gw_links_close(struct gw_worker *w)
{
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++)
		if (w->links[i] != NULL)
			link_retire(w, w->links[i]);
}
