/* SPDX-License-Identifier: Apache-2.0 */
/* load: the readings of the engine's sources. */
#include "base/log/log.h"
#include "joint/node/engineview/engineview_priv.h"

#define SCRAPE_INTERVAL   CGN_SEC
#define SCRAPE_TIMEOUT    (3 * CGN_SEC)
#define SCRAPE_BYTES      ((size_t)4 * 1024 * 1024)
#define RESTART_LOG_EVERY (60 * CGN_SEC)

static void load_ask_next_source(struct engineview *v);

static void on_load_source(void *user, const struct webask_answer *r)
{
	struct engineview *v = user;
	struct engineview_load *s = &v->load;
	s->fetch = NULL;
	engineview_answered(v, r->err->code);
	if (webask_is_ok(r)) {
		v->ops->load_answered(v->user, r->body);
		v->kind->sources[s->source].read(r->body, &s->next);
	} else if (r->err->code == CGN_FINE && r->status >= 400 && r->status < 500) {
		s->source_gone[s->source] = true;
	}
	/* Counters that stand at 0, or are missing, show no request that came and went between two readings. */
	if (s->source == 0)
		s->blind = !webask_is_ok(r) || (s->next.work <= 0 && s->next.made <= 0);
	bool dead = r->refused;
	s->source++;
	load_ask_next_source(v);
	if (dead)
		v->ops->refused(v->user);
}

/* Has the engine's name come to stand for another address since the last call? */
static bool load_is_moved(struct engineview *v)
{
	uint64_t moves = http_client_moves(v->at.client);
	bool moved = moves != v->moves;
	v->moves = moves;
	return moved;
}

/* Return true if the engine has requests, or had some since the last reading. */
static bool load_is_used(const struct engineview *v)
{
	const struct engine_load *now = &v->load.next, *before = &v->load.now;
	return v->ops->is_used(v->user, v->load.blind) || now->running > 0 || now->waiting > 0 ||
		engine_load_worked(before, now) || engine_load_restarted(before, now);
}

/* Keep the values that an idle engine's source had when it was read last. */
static void load_keep(struct engineview_load *s)
{
	s->next.slots = s->now.slots;
	s->next.kv_blocks_total = s->now.kv_blocks_total;
	s->next.kv_block_tokens = s->now.kv_block_tokens;
	s->next.kv_usage = s->now.kv_usage;
}

/* Return true if the source is to be left out, so that an idle engine can sleep. */
static bool source_rests(struct engineview *v)
{
	struct engineview_load *s = &v->load;
	bool may = v->models.known && !engineview_sleeps(v);
	if (!v->kind->sources[s->source].wakes)
		return false;
	if (may && (s->unread || s->was_used || load_is_used(v))) {
		s->unread = false;
		return false;
	}
	load_keep(s);
	return true;
}

/* Log a restart at once, and those of an engine whose counters go up and down once a minute. */
static void restart_log(struct engineview *v)
{
	struct engineview_load *s = &v->load;
	cgn_nsec now = cgn_clock_now();
	s->restarts++;
	if (s->restart_logged != 0 && cgn_since(now, s->restart_logged) < RESTART_LOG_EVERY)
		return;
	cgn_log(WARN, "engine.restarted", F_STR("engine", v->name),
		F_STR("seen_by", "its counters fell between two readings, or its name moved"),
		F_U64("times", s->restarts));
	s->restart_logged = now;
	s->restarts = 0;
}

/* All sources were read. */
static void load_settle(struct engineview *v)
{
	const struct engine_load before = v->load.now;
	bool moved = load_is_moved(v);
	v->load.was_used = load_is_used(v);
	v->load.now = v->load.next;
	bool restarted = moved || engine_load_restarted(&before, &v->load.now);
	if (moved)
		v->models.asked_at = 0;
	else if (engine_load_worked(&before, &v->load.now))
		engineview_worked(v);
	if (restarted) {
		restart_log(v);
		engineview_named_moved(v);
	}
	v->ops->load_read(v->user, &before, restarted);
}

static void load_ask_next_source(struct engineview *v)
{
	struct engineview_load *s = &v->load;
	for (; s->source < ENGINE_MAX_SOURCES; s->source++) {
		const struct webask_question ask = {.path = v->kind->sources[s->source].path,
			.max_bytes = SCRAPE_BYTES,
			.timeout = SCRAPE_TIMEOUT};
		if (ask.path == NULL || s->source_gone[s->source] || source_rests(v))
			continue;
		if (cgn_ok(webask_start(v->loop, &v->at, &ask, on_load_source, v, &s->fetch, NULL))) {
			engineview_asked(v);
			return;
		}
	}
	load_settle(v);
	engineview_models_ask_again(v); /* After the other questions, so that one connection is enough */
	cgn_timer_set(&s->timer, SCRAPE_INTERVAL);
}

static void on_load_tick(struct cgn_timer *t)
{
	struct engineview *v = CGN_CONTAINER(t, struct engineview, load.timer);
	v->load.source = 0;
	/* A failed reading must not look like a counter that fell. */
	v->load.next = (struct engine_load){.work = v->load.now.work,
		.made = v->load.now.made,
		.keeps_none = v->load.now.keeps_none};
	engineview_models_ask(v);
	engineview_named_ask(v);
	v->ops->load_begins(v->user);
	load_ask_next_source(v);
}

void engineview_load_init(struct engineview *v)
{
	cgn_timer_init(&v->load.timer, v->loop, on_load_tick);
}

void engineview_load_start(struct engineview *v)
{
	struct engineview_load *s = &v->load;
	CGN_MUST(s->fetch == NULL);
	for (size_t i = 0; i < ENGINE_MAX_SOURCES; i++)
		s->source_gone[i] = false;
	s->unread = true;
	engineview_models_reset(v);
	engineview_named_reset(v);
	(void)load_is_moved(v);
	cgn_timer_set(&s->timer, 0);
}

void engineview_load_stop(struct engineview *v)
{
	struct engineview_load *s = &v->load;
	cgn_timer_cancel(&s->timer);
	webask_cancel(&s->fetch);
	webask_cancel(&v->models.fetch);
	engineview_named_stop(v);
	cgn_hook_drop(&v->models.again);
	s->now = (struct engine_load){.slots = s->now.slots,
		.kv_blocks_total = s->now.kv_blocks_total,
		.kv_block_tokens = s->now.kv_block_tokens,
		.keeps_none = s->now.keeps_none};
}
