/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/engine.h"
#include "base/log/log.h"

/* ---- the record of sent prompts ---- */

/* A block entered or left the record. */
static void on_sent_changed(void *user, uint64_t digest)
{
	struct engine *e = user;
	struct holdings *h = e->host->holdings;
	if (!residency_has(e->residency.sent, digest))
		(void)holdings_drop(h, digest, BLOCK_GPU);
	else if (!cgn_ok(holdings_add(h, digest, BLOCK_GPU)))
		cgn_log_limited(WARN, "agent.holdings_full", F_STR("engine", e->name),
			F_U64("blocks", holdings_count(h)), F_STR("then", "the block is not told of"));
}

/* A prompt for which the node's holdings have no room is not recorded at all: a block that is recorded but not
 * in the holdings would take another engine's reference with it when it leaves. */
void engine_residency_sent(struct engine *e, const uint64_t *chain, size_t n)
{
	size_t held = holdings_count(e->host->holdings);
	if (e->residency.by != RESIDENCY_BY_SENT || e->view.load.now.keeps_none)
		return;
	if (held + n > NODE_MAX_BLOCKS) {
		cgn_log_limited(WARN, "agent.holdings_full", F_STR("engine", e->name), F_U64("blocks", held),
			F_STR("then", "what is sent there is not recorded"));
		return;
	}
	residency_add(e->residency.sent, chain, n, on_sent_changed, e);
}

void engine_residency_clear(struct engine *e)
{
	residency_clear(e->residency.sent, on_sent_changed, e);
}

void engine_residency_fit(struct engine *e)
{
	size_t capacity = engine_chain_capacity(&e->view.load.now, e->residency.block_bytes, RESIDENCY_MAX);
	residency_limit(e->residency.sent, capacity, on_sent_changed, e);
}

void engine_blocks_seen(struct engine *e, uint32_t block_tokens)
{
	uint64_t bytes = (uint64_t)block_tokens * ENGINE_TOKEN_BYTES;
	if (bytes == 0 || bytes >= e->residency.block_bytes)
		return;
	e->residency.block_bytes = (uint32_t)bytes;
	engine_residency_fit(e);
}

void engine_residency_keeps(struct engine *e)
{
	cgn_log(INFO, "engine.residency", F_STR("engine", e->name),
		F_STR("keeps",
			e->view.load.now.keeps_none ? "nothing: its prefix caching is off" : "blocks"));
	engine_residency_clear(e);
	e->host->ops->residency_changed(e->host->user);
	e->host->ops->changed(e->host->user);
}

const char *engine_residency_text(const struct engine *e)
{
	if (e->view.load.now.keeps_none)
		return "none: prefix caching is off";
	return e->residency.by == RESIDENCY_BY_SLOTS ? "slots" : e->view.feed.text;
}

/* ---- the source ---- */

void engine_residency_source(struct engine *e, enum residency_by by)
{
	static const char *const names[] = {[RESIDENCY_BY_SENT] = "sent",
		[RESIDENCY_BY_EVENTS] = "events",
		[RESIDENCY_BY_SLOTS] = "slots"};
	CGN_LIVE(e, ENGINE_TAG);
	if (e->residency.by == by)
		return;
	e->residency.by = by;
	e->residency.unheard_since = 0;
	cgn_log(INFO, "engine.residency", F_STR("engine", e->name), F_STR("source", names[by]));
	if (by != RESIDENCY_BY_SENT)
		engine_residency_clear(e);
	e->host->ops->residency_changed(e->host->user);
}

void engine_residency_heard(struct engine *e, bool heard)
{
	CGN_LIVE(e, ENGINE_TAG);
	if (heard == (e->residency.unheard_since == 0))
		return;
	e->residency.unheard_since = heard ? 0 : cgn_loop_now(e->host->loop);
	e->host->ops->residency_changed(e->host->user);
}

void engine_residency_init(struct engine *e)
{
	e->residency.block_bytes = e->host->block_bytes;
	e->residency.sent = residency_new(RESIDENCY_MAX);
}

/* ---- the node ---- */

Cognitora__V1__ResidencySource engines_residency_source(const struct engine *e, size_t n)
{
	bool slots = true;
	size_t empty = 0;
	for (size_t i = 0; i < n; i++) {
		if (e[i].view.load.now.keeps_none) {
			empty++;
			continue;
		}
		if (e[i].residency.by == RESIDENCY_BY_SENT)
			return COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_SENT;
		slots = slots && e[i].residency.by == RESIDENCY_BY_SLOTS;
	}
	if (empty == n && n > 0)
		return COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_NONE;
	/* Events and slots together: all engines know blocks of tokens, as events do. */
	return slots ? COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_SLOTS
		     : COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_EVENTS;
}

uint64_t engines_stale_ms(const struct engine *e, size_t n, cgn_nsec now)
{
	cgn_nsec oldest = 0;
	for (size_t i = 0; i < n; i++) {
		cgn_nsec since = e[i].residency.unheard_since;
		if (since != 0 && (oldest == 0 || since < oldest))
			oldest = since;
	}
	return oldest == 0 ? 0 : (uint64_t)(cgn_since(now, oldest) / CGN_MSEC) + 1;
}
