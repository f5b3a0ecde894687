/* SPDX-License-Identifier: Apache-2.0 */
/* feed: the engine's KV events as the source for its blocks. */
#include "base/digest/digest.h"
#include "base/log/log.h"
#include "joint/node/engineview/engineview_priv.h"
#include "policy/node/engine/launch.h"

#define DEFAULT_BLOCK_TOKENS 16

/* ---- the state of the source ---- */

/* The state over all ranks. */
struct feed_verdict {
	bool good;                    /* Every rank is exact */
	bool keeps;                   /* Every rank is exact, or was when it was last in contact */
	struct enginefeed_rank worst; /* The rank to report */
};

static struct feed_verdict feed_judge(const struct engineview_feed *f)
{
	static const uint8_t badness[KVSOURCE_STATES] = {[KVSOURCE_GOOD] = 0,
		[KVSOURCE_SYNCING] = 1,
		[KVSOURCE_WAITING] = 2,
		[KVSOURCE_PARTIAL] = 3,
		[KVSOURCE_DEMOTED] = 4};
	struct feed_verdict v = {.good = true, .keeps = true};
	for (uint32_t i = 0; i < enginefeed_ranks(f->ef); i++) {
		struct enginefeed_rank r = enginefeed_rank(f->ef, i);
		bool unheard = r.state == KVSOURCE_WAITING || r.state == KVSOURCE_SYNCING;
		v.good = v.good && r.state == KVSOURCE_GOOD;
		v.keeps = v.keeps && (r.state == KVSOURCE_GOOD || (unheard && r.stats.keeps));
		if (i == 0 || badness[r.state] > badness[v.worst.state])
			v.worst = r;
	}
	return v;
}

static void feed_describe(struct engineview_feed *f, const struct feed_verdict *v)
{
	if (v->good)
		(void)snprintf(f->text, sizeof f->text, "events");
	else if (v->worst.state == KVSOURCE_DEMOTED)
		(void)snprintf(f->text, sizeof f->text, "demoted: %s", v->worst.why);
	else
		(void)snprintf(f->text, sizeof f->text, "events: %s (%s)",
			kvsource_state_name(v->worst.state), v->worst.why);
}

static void on_feed_changed(void *user)
{
	struct engineview *v = user;
	struct feed_verdict verdict = feed_judge(&v->feed);
	v->feed.counts = verdict.good || (v->feed.counts && verdict.keeps);
	feed_describe(&v->feed, &verdict);
	v->ops->events_changed(v->user, v->feed.counts, verdict.good);
}

/* ---- open and close ---- */

static CGN_RC feed_add_model(struct engineview_feed *f, struct cgn_arena *a, const char *name,
	const struct config_model *m, struct cgn_err *err)
{
	struct engineview_feed_model *to = &f->models[f->n_models];
	to->name = cgn_arena_strz(a, cgn_str_of(name));
	to->canonical = cgn_arena_strz(a, cgn_str_of(m->name));
	to->block_tokens = m->block_tokens;
	f->n_models++;
	return to->name != NULL && to->canonical != NULL
		? CGN_OK
		: CGN_FAIL(err, NO_MEMORY, "no memory for the models of an engine");
}

static CGN_RC feed_add_models(struct engineview_feed *f, struct cgn_arena *a, const struct config *cfg,
	struct cgn_err *err)
{
	size_t n = 0;
	for (size_t i = 0; i < cfg->n_models; i++)
		n += 1 + cfg->models[i].aliases.n;
	f->models = cgn_arena_get(a, (n + 1) * sizeof *f->models);
	if (f->models == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the models of an engine");
	for (size_t i = 0; i < cfg->n_models; i++) {
		const struct config_model *m = &cfg->models[i];
		CGN_TRY(feed_add_model(f, a, m->name, m, err));
		for (size_t k = 0; k < m->aliases.n; k++)
			CGN_TRY(feed_add_model(f, a, m->aliases.v[k], m, err));
	}
	return CGN_OK;
}

static CGN_RC feed_check(const struct engineview_feed *f, struct cgn_err *err)
{
	struct cgn_err why = {0};
	cgn_rc rc = enginefeed_check(&f->cfg, &why);
	return cgn_ok(rc) ? rc
			  : CGN_FAIL_AS(err, rc.code, "kv_events of engine %s: %.300s", f->cfg.name, why.msg);
}

CGN_RC engineview_feed_open(struct engineview *v, const struct config *cfg, const struct config_engine *ce,
	const struct engineview_feed_at *at, struct cgn_arena *arena, struct cgn_err *err)
{
	struct engineview_feed *f = &v->feed;
	const struct engine_events *ev = at->events;
	if (ev->events == NULL)
		return CGN_OK;
	f->holdings = at->holdings;
	f->cfg = (struct enginefeed_cfg){.telemetry = at->telemetry,
		.name = v->name,
		.events = cgn_arena_strz(arena, cgn_str_of(ev->events)),
		.replay = ev->replay != NULL ? cgn_arena_strz(arena, cgn_str_of(ev->replay)) : NULL,
		.topic = cgn_arena_str(arena, cgn_str_of(ce->kv_events_topic)),
		.ranks = ev->ranks,
		.source = {.lora_is_model = ce->kv_events_lora == KV_LORA_MODEL}};
	if (f->cfg.events == NULL || (f->cfg.replay == NULL) != (ev->replay == NULL))
		return CGN_FAIL(err, NO_MEMORY, "no memory for the KV events of engine %s", v->name);
	CGN_TRY(feed_check(f, err));
	CGN_TRY(feed_add_models(f, arena, cfg, err));
	f->on = true;
	return CGN_OK;
}

static const struct engineview_feed_model *feed_find_model(const struct engineview_feed *f, const char *name)
{
	for (size_t i = 0; i < f->n_models; i++)
		if (strcmp(f->models[i].name, name) == 0)
			return &f->models[i];
	return NULL;
}

static void feed_close_source(struct engineview *v)
{
	enginefeed_close(&v->feed.ef);
	v->feed.counts = false;
	v->ops->events_changed(v->user, false, false);
}

/* vLLM and SGLang list the model itself before its LoRA adapters. */
void engineview_feed_models_known(struct engineview *v)
{
	struct engineview_feed *f = &v->feed;
	struct cgn_err err = {0};
	if (!f->on || v->models.list.n == 0)
		return;
	const struct engineview_feed_model *m = feed_find_model(f, engineview_first(v));
	const char *model = m != NULL ? m->canonical : engineview_first(v);
	if (f->ef != NULL && strcmp(model, f->model_text) == 0)
		return;
	if (f->ef != NULL)
		feed_close_source(v);
	(void)cgn_str_copyz(f->model_text, sizeof f->model_text, cgn_str_of(model));
	f->cfg.source.model = model;
	f->cfg.source.block_tokens = m != NULL ? m->block_tokens : DEFAULT_BLOCK_TOKENS;
	if (cgn_ok(enginefeed_open(v->loop, &f->cfg, f->holdings, on_feed_changed, v, &f->ef, &err))) {
		cgn_log(INFO, "kv_events.open", F_STR("engine", v->name), F_STR("endpoint", f->cfg.events),
			F_STR("replay", f->cfg.replay != NULL ? f->cfg.replay : ""),
			F_U64("ranks", f->cfg.ranks), F_STR("model", model),
			F_U64("block_tokens", f->cfg.source.block_tokens));
		on_feed_changed(v);
		return;
	}
	(void)snprintf(f->text, sizeof f->text, "demoted: %.200s", err.msg);
	cgn_log(ERROR, "kv_events.open", F_STR("engine", v->name), F_STR("why", err.msg),
		F_STR("then", "what was sent there counts"));
}

bool engineview_feed_chain(const struct engineview *v, Cognitora__V1__Chain *out)
{
	if (!v->feed.on || !v->feed.counts)
		return false;
	cognitora__v1__chain__init(out);
	out->model = (char *)(uintptr_t)v->feed.model_text;
	out->block_tokens = v->feed.cfg.source.block_tokens;
	out->version = DIGEST_VERSION;
	return true;
}

/* ---- for people ---- */

static void rank_fill(uint32_t rank, const struct enginefeed_rank *r, struct pb_tree *t,
	Cognitora__V1__KvEventsRank *to)
{
	const struct kvsource_stats *st = &r->stats;
	to->rank = rank;
	to->state = pb_text(kvsource_state_name(r->state));
	to->why = pb_tree_text(t, cgn_str_of(r->why));
	to->blocks = st->blocks;
	to->next_seq = st->next_seq;
	to->batches = st->batches;
	to->stored = st->stored;
	to->removed = st->removed;
	to->cleared = st->cleared;
	to->duplicates = st->duplicates;
	to->gaps = st->gaps;
	to->replays = st->replays;
	to->replay_failures = st->replay_failures;
	to->restarts = st->restarts;
	to->errors = st->errors;
	to->orphans = st->orphans;
	to->unknown_removed = st->unknown_removed;
	to->unknown_events = st->unknown_events;
	to->unknown_fields = st->unknown_fields;
	to->dp_rank = st->dp_rank;
}

Cognitora__V1__EngineKvEvents *engineview_feed_new(const struct engineview *v, struct pb_tree *t)
{
	const struct engineview_feed *f = &v->feed;
	if (!f->on)
		return NULL;
	Cognitora__V1__EngineKvEvents *to = PB_NEW(t, engine_kv_events);
	to->endpoint = pb_text(f->cfg.events);
	to->model = pb_text(f->model_text);
	to->block_tokens = f->cfg.source.block_tokens;
	for (uint32_t i = 0; f->ef != NULL && i < enginefeed_ranks(f->ef); i++) {
		struct enginefeed_rank r = enginefeed_rank(f->ef, i);
		rank_fill(i, &r, t, PB_ADD(t, to, ranks, kv_events_rank));
	}
	return to;
}
