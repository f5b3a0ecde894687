/* SPDX-License-Identifier: Apache-2.0 */
/* gate: which batches ask lines now: those in their hours, while energy is cheap, and those whose window ends soon. */
#include <math.h>

#include "base/log/log.h"
#include "router/answer/batch/runner_priv.h"
#include "router/metrics.h"

/* Seconds that all lines that are left are expected to take, |max_concurrent| at once; 0: not known. */
static double lines_need(const struct batch_runner *w)
{
	size_t left = 0;
	cgn_list_each (it, &w->runs) {
		const struct batch_run *run = CGN_CONTAINER(it, struct batch_run, link);
		left += run->busy ? 0 : run->left;
	}
	return (double)left * w->line_s / w->cfg.max_concurrent;
}

/* The price of energy, in times the usual one; negative: not known. Right after a start it counts as high, until the series was read. */
static double price_now(const struct gw_shared *s)
{
	switch ((enum gw_price_state)atomic_load_explicit(&s->price_state, memory_order_relaxed)) {
	case PRICE_KNOWN:
		return energy_board_price_of(s->choice.energy);
	case PRICE_NOT_ASKED:
		return HUGE_VAL;
	case PRICE_NOT_KNOWN:
		break;
	}
	return -1;
}

static void gate_look(struct batch_run *run, double need_s)
{
	struct batch_runner *w = run->owner;
	const enum batch_wait before = run->b.waits;
	const uint64_t until = run->b.waits_until_s;
	const struct batch_moment m = {.now_s = cgn_clock_wall_ms() / 1000,
		.created_s = run->b.times[BATCH_CREATED_AT],
		.expires_s = run->b.times[BATCH_EXPIRES_AT],
		.price = price_now(w->cfg.shared),
		.need_s = need_s};
	if (run->b.status != BATCH_IN_PROGRESS)
		return;
	run->b.waits = batch_gate_at(&w->cfg.gate, &m, &run->b.waits_until_s);
	if (run->b.waits == before && run->b.waits_until_s == until)
		return;
	batches_count(w->cfg.shared->batches, &run->b);
	if (run->b.waits == BATCH_GOES)
		cgn_log(INFO, "batch.goes_on", F_STR("batch", run->b.id));
	else if (run->b.waits != before)
		cgn_log(INFO, "batch.waits", F_STR("batch", run->b.id),
			F_STR("for", batch_wait_text(run->b.waits)), F_U64("until", run->b.waits_until_s));
}

void batch_gates_look(struct batch_runner *w)
{
	static const enum batch_wait waits[] = {BATCH_WAITS_HOURS, BATCH_WAITS_PRICE};
	size_t n[BATCH_WAITS_PRICE + 1] = {0};
	double need_s = lines_need(w);
	cgn_list_each (it, &w->runs) {
		struct batch_run *run = CGN_CONTAINER(it, struct batch_run, link);
		if (run->busy || !run->opened)
			continue;
		gate_look(run, need_s);
		n[run->b.waits]++;
	}
	for (size_t i = 0; i < CGN_COUNT(waits); i++)
		metric_set(METRIC_OF(w->cfg.shared->telemetry, BATCHES_WAITING, batch_wait_text(waits[i])),
			(double)n[waits[i]]);
}
