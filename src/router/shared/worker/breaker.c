/* SPDX-License-Identifier: Apache-2.0 */
/* breaker: steps of the nodes' breakers, with their log lines and metrics. */
#include "router/shared/worker/breaker.h"

#include "base/log/log.h"

static void breaker_log_open(struct telemetry *t, const char *node, uint64_t word, cgn_nsec now)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf why = {0};
	breaker_text(word, now, &why);
	cgn_log_limited(WARN, "router.breaker", F_STR("node", node), F_STR("state", "open"),
		F_STR("why", cgn_buf_z(&why)), F_DUR("for", breaker_left(word, now)));
	metric_add(METRIC_OF(t, EJECTIONS, node, breaker_reason_label(breaker_why(word))), 1);
	if (breaker_why(word) == BREAKER_FOR_STALL || breaker_why(word) == BREAKER_FOR_SILENT)
		metric_add(METRIC_OF(t, STALLS, node), 1);
}

void gw_breaker_show(struct telemetry *t, const char *node, uint64_t word, cgn_nsec now)
{
	metric_set(METRIC_OF(t, BREAKER_STATE, node), (double)breaker_state(word, now));
}

struct breaker_change gw_breaker_step(struct telemetry *t, struct node_stats *stats,
	const struct breaker_rules *rules, const char *node, const struct breaker_input *in)
{
	struct breaker_change c = breaker_apply(&stats->breaker, rules, in);
	enum breaker_state was = breaker_state(c.was, in->now), is = breaker_state(c.is, in->now);
	if (breaker_opened(&c))
		breaker_log_open(t, node, c.is, in->now);
	else if (breaker_closed(&c))
		cgn_log_limited(INFO, "router.breaker", F_STR("node", node), F_STR("state", "closed"),
			F_STR("after", breaker_reason_text(breaker_why(c.was))));
	else if (c.is != c.was && in->event == BREAKER_CLAIM)
		cgn_log_limited(INFO, "router.breaker", F_STR("node", node), F_STR("state", "half-open"),
			F_STR("then", "this request tries it"));
	if (was != is)
		gw_breaker_show(t, node, c.is, in->now);
	return c;
}

enum breaker_gate gw_breaker_claim(struct gw_worker *w, const struct view_node *node)
{
	return gw_breaker_claim_at(w, node->slot, node->id);
}

enum breaker_gate gw_breaker_claim_at(struct gw_worker *w, uint16_t slot, const char *id)
{
	struct node_stats *stats = &w->shared->choice.stats[slot];
	cgn_nsec now = cgn_loop_now(w->loop);
	enum breaker_gate gate =
		breaker_gate(atomic_load_explicit(&stats->breaker, memory_order_relaxed), now);
	if (gate != BREAKER_PROBE)
		return gate;
	const struct breaker_input in = {.event = BREAKER_CLAIM, .now = now};
	struct breaker_change c = gw_breaker_step(w->shared->telemetry, stats, &w->rules->breaker, id, &in);
	return c.is != c.was ? BREAKER_PROBE : BREAKER_SHUT;
}

void gw_breaker_unclaim(struct gw_worker *w, uint16_t slot, const char *id, enum breaker_gate gate)
{
	const struct breaker_input in = {.event = BREAKER_PROBE_LEFT, .now = cgn_loop_now(w->loop)};
	if (gate == BREAKER_PROBE)
		(void)gw_breaker_step(w->shared->telemetry, &w->shared->choice.stats[slot],
			&w->rules->breaker, id, &in);
}
