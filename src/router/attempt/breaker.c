/* SPDX-License-Identifier: Apache-2.0 */
/* breaker: what tries tell of their nodes, once each, and what that does. */
#include "base/log/log.h"
#include "base/mix/mix.h"
#include "router/request/gateway.h"

#define LOOK_LEAST   (5 * CGN_MSEC)
#define LEAST_PIECES 8 /* of an answer whose time per token is told */

static struct node_stats *cell_of(const struct gw_req *r)
{
	return &r->w->shared->choice.cells[r->t.slot];
}

double gw_random(struct gw_worker *w)
{
	return (double)(mix_splitmix(&w->ids) >> 11) * 0x1p-53;
}

static struct outlier_tally *tally_of(const struct gw_req *r)
{
	return &r->w->shared->tallies[r->t.slot];
}

/* ---- steps, of workers and of the control loop ---- */

static void opened(struct telemetry *t, const char *node, uint64_t word, cgn_nsec now)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf why = {0};
	breaker_text(word, now, &why);
	cgn_log(WARN, "router.breaker", F_STR("node", node), F_STR("state", "open"),
		F_STR("why", cgn_buf_z(&why)), F_DUR("for", breaker_left(word, now)));
	metric_add(METRIC_OF(t, EJECTIONS, node, breaker_reason_label(breaker_why(word))), 1);
	if (breaker_why(word) == BREAKER_FOR_STALL || breaker_why(word) == BREAKER_FOR_SILENT)
		metric_add(METRIC_OF(t, STALLS, node), 1);
}

void gw_breaker_show(struct telemetry *t, const char *node, uint64_t word, cgn_nsec now)
{
	metric_set(METRIC_OF(t, BREAKER_STATE, node), (double)breaker_state(word, now));
}

struct breaker_change gw_breaker_step(struct telemetry *t, struct node_stats *cell,
	const struct breaker_rules *rules, const char *node, const struct breaker_input *in)
{
	struct breaker_change c = breaker_apply(&cell->breaker, rules, in);
	enum breaker_state was = breaker_state(c.was, in->now), is = breaker_state(c.is, in->now);
	if (breaker_opened(&c))
		opened(t, node, c.is, in->now);
	else if (breaker_closed(&c))
		cgn_log(INFO, "router.breaker", F_STR("node", node), F_STR("state", "closed"),
			F_STR("after", breaker_reason_text(breaker_why(c.was))));
	else if (c.is != c.was && in->event == BREAKER_CLAIM)
		cgn_log(INFO, "router.breaker", F_STR("node", node), F_STR("state", "half-open"),
			F_STR("then", "this request tries it"));
	if (was != is)
		gw_breaker_show(t, node, c.is, in->now);
	return c;
}

static void tell(struct gw_req *r, enum breaker_event ev, enum breaker_reason why)
{
	const struct view_node *node = view_node_at(r->w->view, r->t.slot);
	if (node == NULL || node->node_id_hash != r->t.ticket.node)
		return; /* its successor in the slot is not to be blamed */
	const struct breaker_input in = {.event = ev,
		.reason = why,
		.now = cgn_loop_now(r->w->loop),
		.jitter = gw_random(r->w)};
	(void)gw_breaker_step(r->w->shared->telemetry, cell_of(r), &r->w->rules->breaker, r->t.node_id, &in);
}

enum breaker_gate gw_breaker_claim(struct gw_worker *w, const struct view_node *node)
{
	struct node_stats *cell = &w->shared->choice.cells[node->slot];
	cgn_nsec now = cgn_loop_now(w->loop);
	enum breaker_gate gate =
		breaker_gate(atomic_load_explicit(&cell->breaker, memory_order_relaxed), now);
	if (gate != BREAKER_PROBE)
		return gate;
	const struct breaker_input in = {.event = BREAKER_CLAIM, .now = now};
	struct breaker_change c =
		gw_breaker_step(w->shared->telemetry, cell, &w->rules->breaker, node->id, &in);
	return c.is != c.was ? BREAKER_PROBE : BREAKER_SHUT;
}

/* ---- verdicts ---- */

/* Its probe has done what it was for. What becomes of the rest of the answer counts like any other. The first
 * byte of an answer that is not streamed comes with its last: that says how long it is. */
void gw_judge_begun(struct gw_req *r)
{
	cgn_nsec now = cgn_loop_now(r->w->loop);
	pulse_beat(&cell_of(r)->pulse, now);
	r->t.begun_at = now;
	if (r->event_stream)
		outlier_add_first(tally_of(r), now - r->t.sent_at,
			(uint64_t)r->t.ticket.new_tokens + r->t.ticket.ahead_tokens);
	if (r->t.judged || r->t.gate == BREAKER_PASS)
		return;
	tell(r, BREAKER_PROBE_OK, BREAKER_FOR_NOTHING);
	r->t.gate = BREAKER_PASS;
}

/* What a client that reads slowly makes slow is no measure. */
static void token_time(const struct gw_req *r)
{
	uint32_t decoding = atomic_load_explicit(&cell_of(r)->decoding, memory_order_relaxed);
	if (r->event_stream && r->t.begun_at != 0 && !r->was_paused && r->pieces >= LEAST_PIECES)
		outlier_add_token(tally_of(r), (r->last_byte - r->t.begun_at) / (r->pieces - 1), decoding);
}

void gw_judge_ok(struct gw_req *r)
{
	if (r->t.judged)
		return;
	r->t.judged = true;
	token_time(r);
	outlier_add_end(tally_of(r), false);
	tell(r, BREAKER_OK, BREAKER_FOR_NOTHING);
}

void gw_judge_bad(struct gw_req *r, enum breaker_failure how)
{
	if (r->t.judged)
		return;
	if (!breaker_failure_counts(how)) {
		gw_judge_left(r);
		return;
	}
	r->t.judged = true;
	outlier_add_end(tally_of(r), true);
	tell(r, r->t.gate == BREAKER_PROBE ? BREAKER_PROBE_BAD : BREAKER_FAILED, BREAKER_FOR_NOTHING);
}

void gw_judge_left(struct gw_req *r)
{
	if (!r->t.judged && r->t.gate == BREAKER_PROBE)
		tell(r, BREAKER_PROBE_LEFT, BREAKER_FOR_NOTHING);
	r->t.judged = true;
}

/* ---- silence ---- */

/* The engine behind it tells of a stall by ending what it relays, and so do agents that are silent
 * themselves: by the control loop. */
bool gw_node_stalled(const struct gw_req *r, cgn_nsec since)
{
	return pulse_stopped(&cell_of(r)->pulse, since);
}

/* Often enough to see in time what others found out about the node, and seldom enough for many thousand
 * streams. */
cgn_nsec gw_look_again(const struct gw_req *r)
{
	cgn_nsec stall = r->w->rules->stall_timeout, idle = r->w->rules->stream_idle_timeout / 4;
	cgn_nsec most = stall > 0 && stall / 4 < idle ? stall / 4 : idle;
	return most > CGN_SEC ? CGN_SEC : most > LOOK_LEAST ? most : LOOK_LEAST;
}

/* Its agent says so, and has ended what ran there. */
void gw_judge_stalled(struct gw_req *r)
{
	if (r->t.judged)
		return;
	r->t.judged = true;
	outlier_add_end(tally_of(r), true);
	tell(r, BREAKER_TRIP, BREAKER_FOR_STALL);
}

/* None of its streams brings anything: all of them are dead, and nobody is to be sent there. */
static void node_stop(struct gw_req *r, cgn_nsec now)
{
	pulse_stop(&cell_of(r)->pulse, now);
	r->t.judged = true;
	outlier_add_end(tally_of(r), true);
	tell(r, BREAKER_TRIP, BREAKER_FOR_STALL);
}

/* For how long it may bring nothing. Before its second piece a stream may still wait for its prompt: some
 * engines begin to answer before they begin to work. */
static cgn_nsec patience(const struct gw_req *r)
{
	const struct node_stats *cell = cell_of(r);
	uint64_t tokens = atomic_load_explicit(&cell->queued_tokens, memory_order_relaxed);
	if (r->pieces < 2)
		tokens += (uint64_t)r->t.ticket.new_tokens + r->t.ticket.ahead_tokens;
	return pulse_limit(&cell->pulse, r->w->rules->stall_timeout, tokens);
}

bool gw_stream_stalled(struct gw_req *r, cgn_nsec now)
{
	cgn_nsec limit = patience(r), heard = pulse_heard(&cell_of(r)->pulse);
	if (gw_node_stalled(r, r->last_byte))
		return true;
	if (now - r->last_byte < limit || gw_worker_was_away(r->w))
		return false;
	bool others = heard > r->last_byte && now - heard < limit;
	if (!others)
		node_stop(r, now);
	return !others || r->pieces >= 2;
}
