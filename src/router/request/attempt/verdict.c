/* SPDX-License-Identifier: Apache-2.0 */
/* verdict: how attempts judge their nodes. */
#include "router/request/attempt/verdict.h"

#include "router/shared/worker/breaker.h"

#define WORKS_WITHIN (5 * CGN_SEC) /* An engine that worked for others within this time is at work */
#define TOLD_WITHIN  CGN_SEC
#define LEAST_PIECES 8 /* fewest pieces of an answer whose time per token counts */

static struct node_stats *stats_of(const struct gw_attempt *a)
{
	return &a->w->shared->choice.stats[a->call.slot];
}

static struct outlier_tally *tally_of(const struct gw_attempt *a)
{
	return &a->w->shared->tallies[a->call.slot];
}

static void breaker_report(struct gw_attempt *a, enum breaker_event ev, enum breaker_reason why)
{
	const struct view_node *node = view_node_at(a->w->view, a->call.slot);
	if (a->peer == NULL && (node == NULL || node->node_id_hash != a->ticket.node))
		return;
	const struct breaker_input in = {.event = ev,
		.reason = why,
		.now = cgn_loop_now(a->w->loop),
		.jitter = gw_random(a->w)};
	(void)gw_breaker_step(a->w->shared->telemetry, stats_of(a), &a->w->rules->breaker, a->call.node_id,
		&in);
}

/* Only a stream tells its time to first token: the first byte of any other answer comes with its last. */
void gw_verdict_begun(struct gw_attempt *a)
{
	cgn_nsec now = cgn_loop_now(a->w->loop);
	pulse_beat(&stats_of(a)->pulse, now);
	a->begun_at = now;
	if (a->events && !a->ticket.cold)
		outlier_add_first(tally_of(a), cgn_since(now, a->sent_at),
			(uint64_t)a->ticket.new_tokens + a->ticket.ahead_tokens);
	if (a->judged || a->gate == BREAKER_PASS)
		return;
	breaker_report(a, BREAKER_PROBE_OK, BREAKER_FOR_NOTHING);
	a->gate = BREAKER_PASS;
}

static void token_time_add(const struct gw_attempt *a)
{
	uint32_t decoding = atomic_load_explicit(&stats_of(a)->decoding, memory_order_relaxed);
	if (a->events && a->begun_at != 0 && a->pieces >= LEAST_PIECES)
		outlier_add_token(tally_of(a), cgn_since(a->last_byte, a->begun_at) / (a->pieces - 1),
			decoding);
}

void gw_verdict_fine(struct gw_attempt *a, bool steady)
{
	if (a->judged)
		return;
	a->judged = true;
	if (steady)
		token_time_add(a);
	outlier_add_end(tally_of(a), false);
	breaker_report(a, BREAKER_OK, BREAKER_FOR_NOTHING);
}

void gw_verdict_bad(struct gw_attempt *a, enum breaker_failure how)
{
	if (a->judged)
		return;
	if (!breaker_failure_counts(how)) {
		gw_verdict_none(a);
		return;
	}
	a->judged = true;
	outlier_add_end(tally_of(a), true);
	breaker_report(a, a->gate == BREAKER_PROBE ? BREAKER_PROBE_BAD : BREAKER_FAILED, BREAKER_FOR_NOTHING);
}

void gw_verdict_none(struct gw_attempt *a)
{
	if (!a->judged && a->gate == BREAKER_PROBE)
		breaker_report(a, BREAKER_PROBE_LEFT, BREAKER_FOR_NOTHING);
	a->judged = true;
}

void gw_verdict_witnessed(struct gw_worker *w, uint16_t slot, uint64_t node, const char *id)
{
	const struct view_node *now = view_node_at(w->view, slot);
	struct node_stats *stats = &w->shared->choice.stats[slot];
	struct breaker_input in = {.event = BREAKER_FAILED,
		.reason = BREAKER_FOR_FAILURES,
		.now = cgn_loop_now(w->loop),
		.jitter = gw_random(w)};
	if (now == NULL || now->node_id_hash != node)
		return;
	/* The probe was given up when the verdict was not clear. */
	uint64_t word = atomic_load_explicit(&stats->breaker, memory_order_relaxed);
	if (breaker_state(word, in.now) == BREAKER_HALF_OPEN) {
		in.event = BREAKER_TRIP;
		in.reason = breaker_why(word);
	}
	outlier_add_end(&w->shared->tallies[slot], true);
	(void)gw_breaker_step(w->shared->telemetry, stats, &w->rules->breaker, id, &in);
}

static void breaker_trip(struct gw_attempt *a)
{
	a->judged = true;
	outlier_add_end(tally_of(a), true);
	breaker_report(a, BREAKER_TRIP, BREAKER_FOR_STALL);
}

void gw_verdict_stalled(struct gw_attempt *a)
{
	if (!a->judged)
		breaker_trip(a);
}

/* Return true if the engine works for others. The bytes of this answer are told by its witness a moment later, so they are
 * left out. */
static bool engine_works(const struct gw_attempt *a)
{
	const struct pulse *pulse = &stats_of(a)->pulse;
	cgn_nsec now = cgn_loop_now(a->w->loop);
	cgn_nsec waited = cgn_since(now, a->begun_at != 0 ? a->last_byte : a->sent_at);
	cgn_nsec within = waited > TOLD_WITHIN ? waited - TOLD_WITHIN : 0;
	return a->peer == NULL && !pulse_stopped(pulse, 0) &&
		pulse_works(pulse, now, within < WORKS_WITHIN ? within : WORKS_WITHIN);
}

void gw_verdict_late(struct gw_attempt *a, enum breaker_failure how)
{
	if (engine_works(a))
		gw_verdict_none(a);
	else
		gw_verdict_bad(a, how);
}

/* ---- silence ---- */

bool gw_attempt_node_stalled(const struct gw_attempt *a, cgn_nsec since)
{
	const struct pulse *pulse = &stats_of(a)->pulse;
	return pulse_stopped(pulse, since) || (!a->by_engine && pulse_agent_lost(pulse, since));
}

/* How long the stream may bring nothing. Before its second piece it may still wait for its prompt: some engines
 * begin to answer before they begin to work. */
static cgn_nsec silence_limit(const struct gw_attempt *a)
{
	const struct node_stats *stats = stats_of(a);
	uint64_t tokens = atomic_load_explicit(&stats->queued_tokens, memory_order_relaxed);
	if (a->pieces < 2)
		tokens += (uint64_t)a->ticket.new_tokens + a->ticket.ahead_tokens;
	return pulse_limit(&stats->pulse, a->w->rules->timeout.stall, tokens);
}

bool gw_attempt_node_dead(struct gw_attempt *a, cgn_nsec now)
{
	struct pulse *pulse = &stats_of(a)->pulse;
	cgn_nsec limit = silence_limit(a), heard = pulse_heard(pulse);
	cgn_nsec last = a->last_byte > a->sent_at ? a->last_byte : a->sent_at;
	if (gw_attempt_node_stalled(a, last))
		return true;
	if (a->peer != NULL || cgn_since(now, last) < limit || cgn_since(now, heard) < limit ||
		gw_worker_was_away(a->w) || pulse_lives(pulse, now, a->w->rules->timeout.stall))
		return false;
	pulse_stop(pulse, now);
	breaker_trip(a);
	return true;
}

const char *gw_attempt_silence(struct gw_attempt *a, cgn_nsec now)
{
	if (gw_attempt_node_dead(a, now))
		return "the node is stalled (router.stall_timeout)";
	if (cgn_since(now, a->last_byte) >= a->w->rules->timeout.stream_idle && !gw_worker_was_away(a->w))
		return "the engine was silent for too long (router.stream_idle_timeout)";
	return NULL;
}
