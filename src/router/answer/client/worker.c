/* SPDX-License-Identifier: Apache-2.0 */
/* worker: the life of a worker, and its updates by posts. */
#include <stdlib.h>

#include "base/log/log.h"
#include "router/answer/client/client_priv.h"
#include "router/answer/client/gateway.h"
#include "router/answer/plan/queue.h"
#include "router/answer/selection/selection.h"
#include "router/request/account/account.h"
#include "router/request/account/explain.h"
#include "router/request/account/underway.h"
#include "router/request/hooks/hooks.h"
#include "router/shared/worker/link.h"

static void worker_count(struct cgn_timer *t)
{
	struct gw_worker *w = CGN_CONTAINER(t, struct gw_worker, count_timer);
	cgn_nsec now = cgn_loop_now(w->loop);
	if (cgn_since(now, w->counted_at) > GW_COUNT_LATE)
		w->away_until = now;
	w->counted_at = now;
	atomic_store_explicit(&w->connections, http_server_stats(w->server).connections,
		memory_order_relaxed);
	gw_series_sweep(w, now);
	if (gw_select_sweep(w))
		gw_queue_room(w);
	cgn_timer_set(t, GW_COUNT_EVERY);
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
	struct gw_worker *w = CGN_NEW(struct gw_worker);
	w->tag = GW_WORKER_TAG;
	w->index = cfg->index;
	w->shared = cfg->shared;
	cgn_random(&w->random, sizeof w->random);
	w->view = view;
	cluster_view_ref(view);
	w->rules = rules;
	gw_rules_ref(rules);
	gw_account_open(w);
	cgn_rc rc = chooser_new(&cfg->shared->choice, (uint32_t)w->random, &w->chooser, err);
	if (cgn_ok(rc))
		rc = cgn_loop_new(&w->loop, err);
	if (cgn_ok(rc))
		rc = gw_tokens_open(w, cfg->prompt_cache, err);
	if (cgn_ok(rc))
		rc = gw_explain_open(w, cfg->explain, err);
	if (cgn_ok(rc))
		rc = http_server_new(w->loop, &cfg->http, &gw_http_ops, w, &w->server, err);
	if (!cgn_ok(rc)) {
		http_server_free(&w->server);
		cgn_loop_free(&w->loop);
		worker_drop(w);
		return rc;
	}
	gw_store_open(w, cfg->store);
	gw_hooks_open(w);
	gw_underway_open(w);
	cgn_timer_init(&w->count_timer, w->loop, worker_count);
	w->counted_at = cgn_loop_now(w->loop);
	cgn_timer_set(&w->count_timer, GW_COUNT_EVERY);
	*out = w;
	return CGN_OK;
}

CGN_RC gw_worker_gate(struct gw_worker *w, struct gw_peer *peer, const struct http_server_cfg *http,
	struct cgn_err *err)
{
	CGN_LIVE(w, GW_WORKER_TAG);
	CGN_MUST(w->n_gates < CLUSTER_PEERS);
	struct gw_gate *g = &w->gates[w->n_gates];
	*g = (struct gw_gate){.w = w, .peer = peer};
	CGN_TRY(http_server_new(w->loop, http, &gw_gate_ops, g, &g->server, err));
	w->n_gates++;
	return CGN_OK;
}

CGN_RC gw_worker_start(struct gw_worker *w, struct cgn_err *err)
{
	char name[16];
	CGN_LIVE(w, GW_WORKER_TAG);
	(void)snprintf(name, sizeof name, "worker-%u", w->index);
	return cgn_loop_start_thread(w->loop, name, err);
}

/* ---- posts ---- */

struct news {
	struct cgn_post post;
	struct gw_worker *w;
	struct cluster_view *view;
	struct gw_rules *rules;
};

static void worker_on_news(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct news *n = CGN_CONTAINER(p, struct news, post);
	struct gw_worker *w = n->w;
	if (n->view != NULL) {
		cluster_view_unref(&w->view);
		w->view = n->view;
		gw_links_sweep(w);
	}
	if (n->rules != NULL) {
		gw_rules_unref(&w->rules);
		w->rules = n->rules;
		gw_hooks_open(w);
	}
	free(n);
}

void gw_worker_update(struct gw_worker *w, struct cluster_view *view, struct gw_rules *rules)
{
	struct news *n = CGN_NEW(struct news);
	n->w = w;
	n->view = view;
	n->rules = rules;
	if (view != NULL)
		cluster_view_ref(view);
	if (rules != NULL)
		gw_rules_ref(rules);
	cgn_loop_post(w->loop, &n->post, worker_on_news);
}

static void worker_drained(void *arg)
{
	struct gw_worker *w = arg;
	CGN_LIVE(w, GW_WORKER_TAG);
	if (--w->n_draining == 0)
		w->on_idle(w->idle_arg);
}

static void on_drain(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct gw_worker *w = CGN_CONTAINER(p, struct gw_worker, drain_post);
	w->n_draining = 1 + w->n_gates;
	for (size_t i = 0; i < w->n_gates; i++)
		http_server_drain(w->gates[i].server, worker_drained, w);
	http_server_drain(w->server, worker_drained, w);
}

void gw_worker_drain(struct gw_worker *w, void (*on_idle)(void *arg), void *arg)
{
	CGN_LIVE(w, GW_WORKER_TAG);
	w->on_idle = on_idle;
	w->idle_arg = arg;
	cgn_loop_post(w->loop, &w->drain_post, on_drain);
}

/* Runs on the worker's loop, or on the freeing thread when the worker's thread has ended. */
static void worker_close(struct gw_worker *w)
{
	cgn_timer_cancel(&w->count_timer);
	for (size_t i = 0; i < w->n_gates; i++)
		http_server_free(&w->gates[i].server);
	http_server_free(&w->server);
	gw_hooks_close(w);
	gw_store_close(w); /* after the last request has ended */
	gw_underway_close(w);
	gw_links_close(w);
	for (size_t i = 0; i < CLUSTER_PEERS; i++)
		http_client_free(&w->peers[i]);
}

static void on_stop(struct cgn_loop *l, struct cgn_post *p)
{
	worker_close(CGN_CONTAINER(p, struct gw_worker, stop_post));
	cgn_loop_stop(l);
}

void gw_worker_free(struct gw_worker **take)
{
	struct gw_worker *w = CGN_TAKE_LIVE(take, GW_WORKER_TAG);
	if (w == NULL)
		return;
	/* a loop that never ran runs its posts when it is freed */
	cgn_loop_post(w->loop, &w->stop_post, on_stop);
	cgn_loop_join(w->loop);
	cgn_loop_free(&w->loop);
	worker_drop(w);
}
