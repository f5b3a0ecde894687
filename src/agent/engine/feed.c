/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/feed.h"

#include "agent/engine/engine.h"
#include "agent/engine/launch.h"
#include "base/log/log.h"
#include "joint/enginefeed/enginefeed.h"

#define DEFAULT_BLOCK_TOKENS 16

/* A name of a configured model. */
struct model_blocks {
	const char *name;      /* The model's name or an alias */
	const char *canonical; /* The model's name */
	uint32_t block_tokens;
};

struct engine_feed {
	struct enginefeed_cfg cfg; /* Strings are in the engine's arena */
	struct model_blocks *models;
	size_t n_models;
	char model_text[257];  /* Model for which the sockets are open */
	struct enginefeed *ef; /* NULL: not open */
};

/* ---- the state of the source ---- */

/* The state over all ranks. */
struct feed_verdict {
	bool good;                    /* Every rank is exact */
	bool keeps;                   /* Every rank is exact, or was when it was last in contact */
	struct enginefeed_rank worst; /* The rank to report */
};

static struct feed_verdict feed_judge(const struct engine_feed *f)
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

static void feed_describe(struct engine *e, const struct feed_verdict *v)
{
	char *text = e->residency.text;
	if (v->good)
		(void)snprintf(text, sizeof e->residency.text, "events");
	else if (v->worst.state == KVSOURCE_DEMOTED)
		(void)snprintf(text, sizeof e->residency.text, "demoted: %s", v->worst.why);
	else
		(void)snprintf(text, sizeof e->residency.text, "events: %s (%s)",
			kvsource_state_name(v->worst.state), v->worst.why);
}

static void on_feed_changed(void *user)
{
	struct engine *e = user;
	CGN_LIVE(e, ENGINE_TAG);
	struct feed_verdict v = feed_judge(e->feed);
	bool events = v.good || (e->residency.by == RESIDENCY_BY_EVENTS && v.keeps);
	feed_describe(e, &v);
	engine_residency_source(e, events ? RESIDENCY_BY_EVENTS : RESIDENCY_BY_SENT);
	if (events)
		engine_residency_heard(e, v.good);
	e->host->ops->changed(e->host->user);
}

/* ---- open and close ---- */

static CGN_RC feed_add_model(struct engine_feed *f, struct cgn_arena *a, const char *name,
	const struct config_model *m, struct cgn_err *err)
{
	struct model_blocks *to = &f->models[f->n_models];
	to->name = cgn_arena_strz(a, cgn_str_of(name));
	to->canonical = cgn_arena_strz(a, cgn_str_of(m->name));
	to->block_tokens = m->block_tokens;
	f->n_models++;
	return to->name != NULL && to->canonical != NULL
		? CGN_OK
		: CGN_FAIL(err, NO_MEMORY, "no memory for the models of an engine");
}

static CGN_RC feed_add_models(struct engine_feed *f, struct cgn_arena *a, const struct config *cfg,
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

static CGN_RC feed_check(const struct engine_feed *f, struct cgn_err *err)
{
	struct cgn_err why = {0};
	cgn_rc rc = enginefeed_check(&f->cfg, &why);
	return cgn_ok(rc) ? rc
			  : CGN_FAIL_AS(err, rc.code, "kv_events of engine %s: %.300s", f->cfg.name, why.msg);
}

CGN_RC engine_feed_open(struct engine *e, const struct config *cfg, const struct config_engine *ce,
	struct cgn_err *err)
{
	struct engine_events ev;
	const char *prefix;
	CGN_TRY(engine_prefix(cfg, ce, &e->arena, &prefix, err));
	CGN_TRY(engine_events_of(ce, e->url.port, prefix, &e->arena, &ev, err));
	if (ev.events == NULL)
		return CGN_OK;
	struct engine_feed *f = cgn_arena_zero(&e->arena, sizeof *f);
	if (f == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the KV events of engine %s", e->name);
	f->cfg = (struct enginefeed_cfg){.telemetry = e->host->telemetry,
		.name = e->name,
		.events = cgn_arena_strz(&e->arena, cgn_str_of(ev.events)),
		.replay = ev.replay != NULL ? cgn_arena_strz(&e->arena, cgn_str_of(ev.replay)) : NULL,
		.topic = cgn_arena_str(&e->arena, cgn_str_of(ce->kv_events_topic)),
		.ranks = ev.ranks,
		.source = {.lora_is_model = ce->kv_events_lora == KV_LORA_MODEL}};
	if (f->cfg.events == NULL || (f->cfg.replay == NULL) != (ev.replay == NULL))
		return CGN_FAIL(err, NO_MEMORY, "no memory for the KV events of engine %s", e->name);
	CGN_TRY(feed_check(f, err));
	CGN_TRY(feed_add_models(f, &e->arena, cfg, err));
	e->feed = f;
	return CGN_OK;
}

static const struct model_blocks *feed_find_model(const struct engine_feed *f, const char *name)
{
	for (size_t i = 0; i < f->n_models; i++)
		if (strcmp(f->models[i].name, name) == 0)
			return &f->models[i];
	return NULL;
}

static void feed_close_source(struct engine *e)
{
	enginefeed_close(&e->feed->ef);
	engine_residency_source(e, RESIDENCY_BY_SENT);
}

/* vLLM and SGLang list the model itself before its LoRA adapters. */
void engine_feed_models_known(struct engine *e)
{
	struct engine_feed *f = e->feed;
	struct cgn_err err = {0};
	if (f == NULL || e->models.n == 0)
		return;
	const struct model_blocks *m = feed_find_model(f, e->models.names[0]);
	const char *model = m != NULL ? m->canonical : e->models.names[0];
	if (f->ef != NULL && strcmp(model, f->model_text) == 0)
		return;
	if (f->ef != NULL)
		feed_close_source(e);
	(void)cgn_str_copyz(f->model_text, sizeof f->model_text, cgn_str_of(model));
	f->cfg.source.model = model;
	f->cfg.source.block_tokens = m != NULL ? m->block_tokens : DEFAULT_BLOCK_TOKENS;
	if (cgn_ok(enginefeed_open(e->host->loop, &f->cfg, e->host->holdings, on_feed_changed, e, &f->ef,
		    &err))) {
		cgn_log(INFO, "kv_events.open", F_STR("engine", e->name), F_STR("endpoint", f->cfg.events),
			F_STR("replay", f->cfg.replay != NULL ? f->cfg.replay : ""),
			F_U64("ranks", f->cfg.ranks), F_STR("model", model),
			F_U64("block_tokens", f->cfg.source.block_tokens));
		on_feed_changed(e);
		return;
	}
	(void)snprintf(e->residency.text, sizeof e->residency.text, "demoted: %.200s", err.msg);
	cgn_log(ERROR, "kv_events.open", F_STR("engine", e->name), F_STR("why", err.msg),
		F_STR("then", "what was sent there counts"));
}

bool engine_feed_chain(const struct engine *e, Cognitora__V1__Chain *out)
{
	if (e->feed == NULL || e->residency.by != RESIDENCY_BY_EVENTS)
		return false;
	cognitora__v1__chain__init(out);
	out->model = e->feed->model_text;
	out->block_tokens = e->feed->cfg.source.block_tokens;
	out->version = DIGEST_VERSION;
	return true;
}

void engine_feed_close(struct engine *e)
{
	if (e->feed != NULL)
		enginefeed_close(&e->feed->ef);
	e->feed = NULL;
}

/* ---- /engines ---- */

static void put_rank(struct json_out *o, uint32_t rank, const struct enginefeed_rank *r)
{
	const struct kvsource_stats *st = &r->stats;
	json_open(o, '{');
	json_key_u64(o, "rank", rank);
	json_key_z(o, "state", kvsource_state_name(r->state));
	json_key_z(o, "why", r->why);
	json_key_u64(o, "blocks", st->blocks);
	json_key_u64(o, "next_seq", st->next_seq);
	json_key_u64(o, "batches", st->batches);
	json_key_u64(o, "stored", st->stored);
	json_key_u64(o, "removed", st->removed);
	json_key_u64(o, "cleared", st->cleared);
	json_key_u64(o, "duplicates", st->duplicates);
	json_key_u64(o, "gaps", st->gaps);
	json_key_u64(o, "replays", st->replays);
	json_key_u64(o, "replay_failures", st->replay_failures);
	json_key_u64(o, "restarts", st->restarts);
	json_key_u64(o, "errors", st->errors);
	json_key_u64(o, "orphans", st->orphans);
	json_key_u64(o, "unknown_removed", st->unknown_removed);
	json_key_u64(o, "unknown_events", st->unknown_events);
	json_key_u64(o, "unknown_fields", st->unknown_fields);
	json_key(o, "dp_rank");
	json_put_i64(o, st->dp_rank);
	json_close(o, '}');
}

void engine_feed_report(const struct engine *e, struct json_out *o)
{
	const struct engine_feed *f = e->feed;
	if (f == NULL) {
		json_put_null(o);
		return;
	}
	json_open(o, '{');
	json_key_z(o, "endpoint", f->cfg.events);
	json_key_z(o, "model", f->model_text);
	json_key_u64(o, "block_tokens", f->cfg.source.block_tokens);
	json_key_open(o, "ranks", '[');
	for (uint32_t i = 0; f->ef != NULL && i < enginefeed_ranks(f->ef); i++) {
		struct enginefeed_rank r = enginefeed_rank(f->ef, i);
		put_rank(o, i, &r);
	}
	json_close(o, ']');
	json_close(o, '}');
}
