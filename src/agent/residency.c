/* SPDX-License-Identifier: Apache-2.0 */
/* What the node holds: one set of blocks, fed for each engine by the best source that it has. */
#include "agent/agent.h"
#include "base/log/log.h"

static void on_changed(void *user, uint64_t digest)
{
	watch_digest_changed(user, digest);
}

CGN_RC residency_report_open(struct agent *a, struct cgn_err *err)
{
	return holdings_new(AGENT_MAX_BLOCKS, on_changed, a, &a->holdings, err);
}

/* As residency_changed: a block came into the record of what was sent, or went. */
static void sent_changed(void *user, uint64_t digest)
{
	struct engine *e = user;
	struct holdings *h = e->agent->holdings;
	if (!residency_has(e->resident, digest))
		(void)holdings_drop(h, digest, BLOCK_GPU);
	else if (!cgn_ok(holdings_add(h, digest, BLOCK_GPU)))
		cgn_log(WARN, "agent.holdings_full", F_STR("engine", e->name),
			F_U64("blocks", holdings_count(h)), F_STR("then", "the block is not told of"));
}

/* Nothing is recorded that the node may have no room for: what was recorded and not told of would take
 * somebody else's reference with it when it goes. */
void engine_residency_sent(struct engine *e, const uint64_t *chain, size_t n)
{
	size_t held = holdings_count(e->agent->holdings);
	if (e->source != RESIDENCY_BY_SENT)
		return;
	if (held + n > AGENT_MAX_BLOCKS) {
		cgn_log(WARN, "agent.holdings_full", F_STR("engine", e->name), F_U64("blocks", held),
			F_STR("then", "what is sent there is not recorded"));
		return;
	}
	residency_add(e->resident, chain, n, sent_changed, e);
}

void engine_residency_clear(struct engine *e)
{
	residency_clear(e->resident, sent_changed, e);
}

void engine_residency_limit(struct engine *e, size_t capacity)
{
	residency_limit(e->resident, capacity, sent_changed, e);
}

void engine_residency_source(struct engine *e, enum residency_by source)
{
	CGN_LIVE(e, ENGINE_TAG);
	if (e->source == source)
		return;
	e->source = source;
	e->unheard_since = 0;
	cgn_log(INFO, "engine.residency", F_STR("engine", e->name),
		F_STR("source",
			source == RESIDENCY_BY_EVENTS          ? "events"
				: source == RESIDENCY_BY_SLOTS ? "slots"
							       : "sent"));
	if (source != RESIDENCY_BY_SENT)
		engine_residency_clear(e);
	watch_source_changed(e->agent);
}

void engine_residency_heard(struct engine *e, bool heard)
{
	CGN_LIVE(e, ENGINE_TAG);
	if (heard == (e->unheard_since == 0))
		return;
	e->unheard_since = heard ? 0 : cgn_loop_now(e->agent->loop);
	watch_source_changed(e->agent);
}

Cognitora__V1__ResidencySource agent_source(const struct agent *a)
{
	bool slots = true;
	for (size_t i = 0; i < a->n_engines; i++) {
		if (a->engines[i].source == RESIDENCY_BY_SENT)
			return COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_SENT;
		slots = slots && a->engines[i].source == RESIDENCY_BY_SLOTS;
	}
	/* Of both kinds: only what all of them speak of, blocks of tokens, is known of all. */
	return slots ? COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_SLOTS
		     : COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_EVENTS;
}

uint64_t agent_stale_ms(const struct agent *a)
{
	cgn_nsec oldest = 0, now = cgn_loop_now(a->loop);
	for (size_t i = 0; i < a->n_engines; i++) {
		cgn_nsec since = a->engines[i].unheard_since;
		if (since != 0 && (oldest == 0 || since < oldest))
			oldest = since;
	}
	return oldest == 0 ? 0 : (uint64_t)((now - oldest) / CGN_MSEC) + 1;
}
