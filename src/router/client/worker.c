/* SPDX-License-Identifier: Apache-2.0 */
/* worker: one loop, its listener, its connections to agents, and how it learns what changed. */
#include <stdlib.h>

#include "base/log/log.h"
#include "router/request/gateway.h"

#define WORKER_TAG  0x64305e01U
#define LINK_TAG    0x64112e01U
#define LINK_CONNS  2
#define COUNT_EVERY CGN_SEC
#define LATE        (COUNT_EVERY + 500 * CGN_MSEC)

static void count(struct cgn_timer *t)
{
	struct gw_worker *w = CGN_CONTAINER(t, struct gw_worker, count_timer);
	cgn_nsec now = cgn_loop_now(w->loop);
	if (now - w->counted_at > LATE)
		w->away_until = now;
	w->counted_at = now;
	atomic_store_explicit(&w->connections, http_server_stats(w->server).connections,
		memory_order_relaxed);
	cgn_timer_set(t, COUNT_EVERY);
}

static void worker_drop(struct gw_worker *w)
{
	cluster_view_unref(&w->view);
	gw_rules_unref(&w->rules);
	gw_tokens_close(w);
	gw_account_close(w);
	gw_explain_close(w);
	chooser_free(&w->chooser);
	w->tag = 0;
	free(w);
}

CGN_RC gw_worker_new(const struct gw_worker_cfg *cfg, struct cluster_view *view, struct gw_rules *rules,
	struct gw_worker **out, struct cgn_err *err)
{
	struct gw_worker *w = calloc(1, sizeof *w);
	if (w == NULL)
		return CGN_FAIL(err, NO_MEMORY, "worker %u: out of memory", cfg->index);
	w->tag = WORKER_TAG;
	w->index = cfg->index;
	w->shared = cfg->shared;
	cgn_random(&w->ids, sizeof w->ids);
	w->view = view;
	cluster_view_ref(view);
	w->rules = rules;
	gw_rules_ref(rules);
	gw_account_open(w);
	cgn_rc rc = chooser_new(&cfg->shared->choice, (uint32_t)w->ids, &w->chooser, err);
	if (cgn_ok(rc))
		rc = cgn_loop_new(&w->loop, err);
	if (cgn_ok(rc))
		rc = gw_tokens_open(w, cfg->prompt_cache, err);
	if (cgn_ok(rc))
		rc = gw_explain_open(w, cfg->explain, err);
	if (cgn_ok(rc))
		rc = http_server_new(w->loop, &cfg->http, &gw_http_ops, w, &w->server, err);
	if (cgn_ok(rc))
		rc = gw_store_open(w, cfg->store, err);
	if (!cgn_ok(rc)) {
		http_server_free(&w->server);
		cgn_loop_free(&w->loop);
		worker_drop(w);
		return rc;
	}
	cgn_timer_init(&w->count_timer, w->loop, count);
	w->counted_at = cgn_loop_now(w->loop);
	cgn_timer_set(&w->count_timer, COUNT_EVERY);
	*out = w;
	return CGN_OK;
}

bool gw_worker_was_away(const struct gw_worker *w)
{
	cgn_nsec now = cgn_loop_now(w->loop);
	return now - w->counted_at > LATE || (w->away_until != 0 && now - w->away_until < COUNT_EVERY);
}

CGN_RC gw_worker_start(struct gw_worker *w, struct cgn_err *err)
{
	char name[16];
	CGN_LIVE(w, WORKER_TAG);
	(void)snprintf(name, sizeof name, "worker-%u", w->index);
	return cgn_loop_start_thread(w->loop, name, err);
}

/* ---- links ---- */

static void link_free(struct gw_link *l)
{
	CGN_LIVE(l, LINK_TAG);
	CGN_MUST(l->requests == 0);
	grpc_channel_free(&l->channel);
	free(l->address);
	l->tag = 0;
	free(l);
}

/* Requests that use it go on; it ends with the last of them. */
static void link_retire(struct gw_worker *w, struct gw_link *l)
{
	CGN_LIVE(l, LINK_TAG);
	CGN_MUST(w->links[l->slot] == l);
	w->links[l->slot] = NULL;
	l->retired = true;
	if (l->requests == 0)
		link_free(l);
}

static CGN_RC link_new(struct gw_worker *w, const struct view_node *node, struct gw_link **out,
	struct cgn_err *err)
{
	struct gw_link *l = calloc(1, sizeof *l);
	if (l != NULL)
		l->address = cgn_str_dupz(cgn_str_of(node->address));
	if (l == NULL || l->address == NULL) {
		free(l);
		return CGN_FAIL(err, NO_MEMORY, "link to %s: out of memory", node->id);
	}
	struct grpc_channel_cfg cfg = {
		.addr = l->address,
		.tls = w->shared->agent_tls,
		.connect_timeout = 2 * CGN_SEC, /* another node is a better answer than patience */
		.max_conns = LINK_CONNS,
	};
	cgn_rc rc = grpc_channel_new(w->loop, &cfg, &l->channel, err);
	if (!cgn_ok(rc)) {
		free(l->address);
		free(l);
		return rc;
	}
	l->tag = LINK_TAG;
	l->slot = node->slot;
	*out = l;
	return CGN_OK;
}

/* Its node may have learned its own name since. */
static void cells_take(struct telemetry *t, struct gw_link *l, const struct view_node *node)
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
	CGN_LIVE(w, WORKER_TAG);
	if (w->links[node->slot] == NULL)
		CGN_TRY(link_new(w, node, &w->links[node->slot], err));
	*out = w->links[node->slot];
	cells_take(w->shared->telemetry, *out, node);
	(*out)->requests++;
	return CGN_OK;
}

static void link_release(struct cgn_grave *g)
{
	link_free(CGN_CONTAINER(g, struct gw_link, grave));
}

void gw_link_release(struct gw_worker *w, struct gw_link **take)
{
	struct gw_link *l = *take;
	*take = NULL;
	CGN_LIVE(w, WORKER_TAG);
	CGN_LIVE(l, LINK_TAG);
	CGN_MUST(l->requests > 0);
	/* later, because its last call may be what ends right now, inside the channel */
	if (--l->requests == 0 && l->retired)
		cgn_loop_bury(w->loop, &l->grave, link_release);
}

/* Links whose node left or moved. */
static void links_sweep(struct gw_worker *w)
{
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++) {
		struct gw_link *l = w->links[i];
		if (l == NULL)
			continue;
		const struct view_node *node = view_node_at(w->view, l->slot);
		if (node == NULL || strcmp(node->address, l->address) != 0)
			link_retire(w, l);
	}
}

/* ---- posts ---- */

struct news {
	struct cgn_post post;
	struct gw_worker *w;
	struct cluster_view *view;
	struct gw_rules *rules;
};

static void on_news(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct news *n = CGN_CONTAINER(p, struct news, post);
	struct gw_worker *w = n->w;
	if (n->view != NULL) {
		cluster_view_unref(&w->view);
		w->view = n->view;
		links_sweep(w);
	}
	if (n->rules != NULL) {
		gw_rules_unref(&w->rules);
		w->rules = n->rules;
	}
	free(n);
}

void gw_worker_tell(struct gw_worker *w, struct cluster_view *view, struct gw_rules *rules)
{
	struct news *n = calloc(1, sizeof *n);
	if (n == NULL) {
		cgn_log(ERROR, "router.no_memory", F_U64("worker", w->index));
		return;
	}
	n->w = w;
	n->view = view;
	n->rules = rules;
	if (view != NULL)
		cluster_view_ref(view);
	if (rules != NULL)
		gw_rules_ref(rules);
	cgn_loop_post(w->loop, &n->post, on_news);
}

static void drained(void *arg)
{
	struct gw_worker *w = arg;
	CGN_LIVE(w, WORKER_TAG);
	w->on_idle(w->idle_arg);
}

static void on_drain(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct gw_worker *w = CGN_CONTAINER(p, struct gw_worker, drain_post);
	http_server_drain(w->server, drained, w);
}

void gw_worker_drain(struct gw_worker *w, void (*on_idle)(void *arg), void *arg)
{
	CGN_LIVE(w, WORKER_TAG);
	w->on_idle = on_idle;
	w->idle_arg = arg;
	cgn_loop_post(w->loop, &w->drain_post, on_drain);
}

/* On the worker's loop, or in its stead once its thread ended. */
static void close_all(struct gw_worker *w)
{
	cgn_timer_cancel(&w->count_timer);
	http_server_free(&w->server);
	gw_store_close(w); /* after the last request */
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++)
		if (w->links[i] != NULL)
			link_retire(w, w->links[i]);
}

static void on_stop(struct cgn_loop *l, struct cgn_post *p)
{
	close_all(CGN_CONTAINER(p, struct gw_worker, stop_post));
	cgn_loop_stop(l);
}

void gw_worker_free(struct gw_worker **take)
{
	struct gw_worker *w = *take;
	*take = NULL;
	if (w == NULL)
		return;
	CGN_LIVE(w, WORKER_TAG);
	cgn_loop_post(w->loop, &w->stop_post, on_stop); /* a loop that never ran does it when it is freed */
	cgn_loop_join(w->loop);
	cgn_loop_free(&w->loop);
	worker_drop(w);
}
