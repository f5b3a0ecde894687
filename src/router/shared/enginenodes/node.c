/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/log/log.h"
#include "base/weburl/weburl.h"
#include "joint/node/engineview/door.h"
#include "policy/node/engine/lastwords.h"
#include "policy/node/engine/launch.h"
#include "router/shared/enginenodes/node_priv.h"

#define NODE_ARENA        ((size_t)2 * 1024 * 1024)
#define NODE_BLOCKS       ((size_t)16 * 1024 * 1024)
#define ENGINE_NODE_CONNS 4             /* For questions; requests have connections of their own */
#define LOAD_BEAT         CGN_SEC       /* Longest time between two reports of the load */
#define CHECK_MOST        (2 * CGN_SEC) /* An engine that can be asked for nothing is asked often */

/* ---- readiness ---- */

static void trouble_set(struct engine_node *n, const char *why)
{
	if (strncmp(n->trouble, why, sizeof n->trouble - 1) == 0)
		return;
	engine_text_keep(n->trouble, sizeof n->trouble, cgn_str_of(why));
	engine_node_describe(n);
}

/* Forget the prompts that were sent to the engine: it may hold them no more. Its KV events know better. */
static void sent_forget(struct engine_node *n)
{
	if (n->view.feed.counts)
		return;
	uint64_t now = cgn_clock_wall_ms();
	n->since_ms = now > n->since_ms ? now : n->since_ms + 1;
	engine_node_describe(n);
}

static void ready_changed(struct engine_node *n, bool ready)
{
	engineview_stall_watch(&n->view, ready);
	if (ready) {
		trouble_set(n, "");
		cgn_log(INFO, "engine.ready", F_STR("engine", n->id), F_STR("url", n->door.url.addr));
		engineview_load_start(&n->view);
	} else {
		cgn_log(WARN, "engine.unready", F_STR("engine", n->id), F_STR("why", n->trouble));
		engineview_load_stop(&n->view);
		n->foreign = n->peak.beyond = 0;
		n->load_due = true;
		sent_forget(n);
	}
	engine_node_describe(n);
}

static void node_step(struct engine_node *n, enum supervise_event ev)
{
	struct supervise_orders o;
	enum supervise_state before = n->sup.state;
	cgn_nsec now = cgn_loop_now(n->kin->loop);
	supervise_step(&n->sup, ev, now, &o);
	if (o.wake_at != 0)
		cgn_timer_set(&n->wake, o.wake_at > now ? o.wake_at - now : 0);
	else
		cgn_timer_cancel(&n->wake);
	if (before != n->sup.state && (before == SUPERVISE_READY || n->sup.state == SUPERVISE_READY))
		ready_changed(n, n->sup.state == SUPERVISE_READY);
	if (o.probe)
		engineview_probe(&n->view);
}

static void on_wake(struct cgn_timer *t)
{
	struct engine_node *n = CGN_CONTAINER(t, struct engine_node, wake);
	CGN_LIVE(n, ENGINE_NODE_TAG);
	node_step(n, SUPERVISE_TICK);
}

/* ---- callbacks of joint/node/engineview ---- */

static void on_probed(void *user, enum supervise_event verdict, const char *why)
{
	struct engine_node *n = user;
	CGN_LIVE(n, ENGINE_NODE_TAG);
	trouble_set(n, why);
	if (verdict != SUPERVISE_PROBE_UP)
		engineview_trouble_log(&n->view, supervise_state_name(n->sup.state), n->trouble);
	node_step(n, verdict);
}

static void on_probe_slow(void *user, const char *why)
{
	struct engine_node *n = user;
	CGN_LIVE(n, ENGINE_NODE_TAG);
	if (n->sup.state == SUPERVISE_READY)
		return;
	trouble_set(n, why);
	engineview_trouble_log(&n->view, supervise_state_name(n->sup.state), n->trouble);
}

static void on_stalled(void *user)
{
	struct engine_node *n = user;
	char text[120];
	CGN_LIVE(n, ENGINE_NODE_TAG);
	(void)snprintf(text, sizeof text,
		"stalled: it answers no check and brings no byte (%u requests there)", n->inflight);
	trouble_set(n, text);
	node_step(n, SUPERVISE_STALLED);
	if (n->ops != NULL)
		n->ops->stalled(n->user);
}

static bool on_is_ready(void *user)
{
	const struct engine_node *n = user;
	CGN_LIVE(n, ENGINE_NODE_TAG);
	return engine_node_is_ready(n);
}

static void on_refused(void *user)
{
	struct engine_node *n = user;
	CGN_LIVE(n, ENGINE_NODE_TAG);
	if (n->sup.state != SUPERVISE_READY || n->sup.probing)
		return;
	n->sup.next_probe = cgn_loop_now(n->kin->loop);
	node_step(n, SUPERVISE_TICK);
}

static void on_load_begins(void *user)
{
	struct engine_node *n = user;
	CGN_LIVE(n, ENGINE_NODE_TAG);
	share_peak_next(&n->peak, n->inflight);
}

static void on_load_answered(void *user, struct cgn_str body)
{
	(void)user;
	(void)body;
}

static void on_load_read(void *user, const struct engine_load *before, bool restarted)
{
	struct engine_node *n = user;
	const struct engine_load *now = &n->view.load.now;
	CGN_LIVE(n, ENGINE_NODE_TAG);
	if (restarted)
		sent_forget(n);
	n->foreign = share_foreign(&n->peak, (uint64_t)now->running + now->waiting);
	n->load_due = true;
	n->source_due = n->source_due || before->keeps_none != now->keeps_none;
	n->node_due = n->node_due || before->keeps_none != now->keeps_none || before->slots != now->slots ||
		before->kv_blocks_total != now->kv_blocks_total ||
		before->kv_block_tokens != now->kv_block_tokens;
	engine_node_due(n);
}

static cgn_nsec check_interval(const struct engine_node *n)
{
	cgn_nsec every = n->view.kind->check_every;
	return n->door.url.tls || every < CHECK_MOST ? every : CHECK_MOST;
}

static void on_models_told(void *user, struct cgn_str body)
{
	struct engine_node *n = user;
	CGN_LIVE(n, ENGINE_NODE_TAG);
	const struct engine_ops *kind = n->guess ? engine_kind_guess(body) : n->view.kind;
	if (kind == n->view.kind)
		return;
	n->view.kind = kind;
	n->ce.kind = kind->kind;
	n->sup.cfg.check_interval = check_interval(n);
	cgn_log(INFO, "engine.kind", F_STR("engine", n->id), F_STR("kind", config_enum_text(kind->kind)));
}

static void on_models_known(void *user)
{
	struct engine_node *n = user;
	CGN_LIVE(n, ENGINE_NODE_TAG);
	trouble_set(n, "");
	engine_node_describe(n);
}

static bool on_is_used(void *user, bool blind)
{
	const struct engine_node *n = user;
	(void)blind;
	CGN_LIVE(n, ENGINE_NODE_TAG);
	return n->inflight > 0;
}

static void on_models_changed(void *user, bool emptied)
{
	struct engine_node *n = user;
	CGN_LIVE(n, ENGINE_NODE_TAG);
	if (emptied) {
		cgn_log(INFO, "engine.fell_asleep", F_STR("engine", n->id),
			F_STR("then", "the next request wakes it"));
		sent_forget(n);
	}
	engine_node_describe(n);
}

static void on_models_unknown(void *user, const char *why)
{
	struct engine_node *n = user;
	CGN_LIVE(n, ENGINE_NODE_TAG);
	trouble_set(n, why);
}

static void on_events_changed(void *user, bool counts, bool heard)
{
	struct engine_node *n = user;
	CGN_LIVE(n, ENGINE_NODE_TAG);
	if (!counts || heard)
		n->unheard_since = 0;
	else if (n->unheard_since == 0)
		n->unheard_since = cgn_loop_now(n->kin->loop);
	n->source_due = true;
	engine_node_describe(n);
}

static const struct engineview_ops view_ops = {.probed = on_probed,
	.slow = on_probe_slow,
	.stalled = on_stalled,
	.is_ready = on_is_ready,
	.is_used = on_is_used,
	.refused = on_refused,
	.load_begins = on_load_begins,
	.load_answered = on_load_answered,
	.load_read = on_load_read,
	.models_told = on_models_told,
	.models_known = on_models_known,
	.models_changed = on_models_changed,
	.models_unknown = on_models_unknown,
	.events_changed = on_events_changed};

/* ---- open and close ---- */

static CGN_RC view_open(struct engine_node *n, const struct config_engine *ce, struct cgn_err *err)
{
	const struct engine_events events = {.events = ce->kv_events,
		.replay = ce->kv_events_replay,
		.ranks = ce->kv_events_ranks};
	const struct engineview_feed_at at = {.events = &events,
		.holdings = n->holdings,
		.telemetry = n->kin->telemetry};
	const struct engine_door door = {.url = n->door.url, .tls = n->door.tls};
	n->view = (struct engineview){.loop = n->kin->loop,
		.name = n->id,
		.kind = engine_ops_of(ce->kind),
		.at = {.url = &n->door.url, .authorization = n->door.authorization},
		.ops = &view_ops,
		.user = n};
	const struct supervise_cfg sup = {.ready_interval = ce->ready_interval,
		.check_interval = check_interval(n)};
	supervise_init(&n->sup, &sup);
	CGN_TRY(engineview_init(&n->view, ce, err));
	CGN_TRY(engineview_feed_open(&n->view, n->kin->cfg, ce, &at, &n->arena, err));
	return engine_door_client(&door, n->kin->loop, ENGINE_NODE_CONNS, &n->view.at.client, err);
}

static CGN_RC node_open(struct engine_node *n, const struct engine_node_cfg *cfg, struct cgn_err *err)
{
	const struct config_engine *ce = cfg->engine;
	n->id = cgn_arena_strz(&n->arena, cgn_str_of(cfg->id));
	n->origin = cgn_arena_strz(&n->arena, cgn_str_of(cfg->origin));
	if (n->id == NULL || n->origin == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for engine %s", cfg->id);
	CGN_TRY(weburl_parse(ce->url, &n->door.url, err));
	n->door.authorization = n->kin->door->authorization;
	n->door.tls = n->kin->door->tls;
	n->door.connections = ce->max_conns;
	n->holdings = holdings_new(NODE_BLOCKS, engine_node_block_changed, n);
	return view_open(n, ce, err);
}

CGN_RC engine_node_new(const struct engine_node_kin *kin, const struct engine_node_cfg *cfg,
	struct engine_node **out, struct cgn_err *err)
{
	struct engine_node *n = CGN_NEW(struct engine_node);
	n->tag = ENGINE_NODE_TAG;
	n->kin = kin;
	n->guess = cfg->guess;
	n->ce = (struct config_engine){.kind = cfg->engine->kind,
		.kv_offload = cfg->engine->kv_offload,
		.resume = cfg->engine->resume};
	n->since_ms = cgn_clock_wall_ms();
	cgn_arena_init(&n->arena, NODE_ARENA);
	cgn_arena_init(&n->scratch, NODE_ARENA);
	cgn_hook_init(&n->hook, engine_node_tell);
	cgn_timer_init(&n->wake, kin->loop, on_wake);
	cgn_timer_init(&n->check_timer, kin->loop, engine_node_check);
	(void)cgn_str_copyz(n->trouble, sizeof n->trouble, CGN_STR("not asked yet"));
	cgn_rc rc = node_open(n, cfg, err);
	if (!cgn_ok(rc))
		engine_node_free(&n);
	*out = n;
	return rc;
}

void engine_node_start(struct engine_node *n, const struct engine_node_ops *ops, void *user)
{
	CGN_LIVE(n, ENGINE_NODE_TAG);
	n->ops = ops;
	n->user = user;
	engine_node_repeat(n);
	cgn_timer_set(&n->check_timer, ENGINE_NODE_CHECK);
	if (n->view.models.known)
		engineview_feed_models_known(&n->view);
	node_step(n, SUPERVISE_START);
}

void engine_node_repeat(struct engine_node *n)
{
	CGN_LIVE(n, ENGINE_NODE_TAG);
	n->seq = 0;
	n->load_due = n->reset_due = n->check_due = true;
	engine_node_describe(n);
}

void engine_node_stop(struct engine_node *n)
{
	CGN_LIVE(n, ENGINE_NODE_TAG);
	n->ops = NULL;
	cgn_hook_drop(&n->hook);
	cgn_timer_cancel(&n->check_timer);
	engineview_probe_cancel(&n->view);
	node_step(n, SUPERVISE_STOP);
}

void engine_node_free(struct engine_node **take)
{
	struct engine_node *n = CGN_TAKE_LIVE(take, ENGINE_NODE_TAG);
	if (n == NULL)
		return;
	n->ops = NULL;
	cgn_hook_drop(&n->hook);
	cgn_timer_cancel(&n->wake);
	cgn_timer_cancel(&n->check_timer);
	engineview_close(&n->view);
	http_client_free(&n->view.at.client);
	holdings_free(&n->holdings);
	cgn_buf_fini(&n->changed);
	cgn_arena_fini(&n->arena);
	cgn_arena_fini(&n->scratch);
	n->tag = 0;
	free(n);
}

/* ---- calls of the router ---- */

void engine_node_told(struct engine_node *n, uint32_t inflight, bool heard)
{
	CGN_LIVE(n, ENGINE_NODE_TAG);
	n->inflight = inflight;
	share_peak_note(&n->peak, inflight);
	if (heard)
		engineview_worked(&n->view);
	if (n->load_due || cgn_since(cgn_loop_now(n->kin->loop), n->load_told_at) < LOAD_BEAT)
		return;
	n->load_due = true; /* Signs of life are due even while the engine answers no question of its load. */
	engine_node_due(n);
}

void engine_node_doubt(struct engine_node *n)
{
	CGN_LIVE(n, ENGINE_NODE_TAG);
	engineview_models_doubt(&n->view);
}

void engine_node_resend(struct engine_node *n, const uint32_t *ranges, size_t n_ranges)
{
	CGN_LIVE(n, ENGINE_NODE_TAG);
	for (size_t i = 0; i < n_ranges; i++)
		n->range_due[ranges[i] % BLOCK_RANGES] = true;
	n->ranges_due = n->check_due = true;
	engine_node_due(n);
}

void engine_node_drain(struct engine_node *n)
{
	CGN_LIVE(n, ENGINE_NODE_TAG);
	if (n->draining)
		return;
	n->draining = true;
	engine_node_describe(n);
}

const char *engine_node_id(const struct engine_node *n)
{
	return n->id;
}

const char *engine_node_origin(const struct engine_node *n)
{
	return n->origin;
}

const struct cluster_door *engine_node_door(const struct engine_node *n)
{
	return &n->door;
}
