/* SPDX-License-Identifier: Apache-2.0 */
/* worker: functions on a worker's state that all folders use. */
#include "router/shared/worker/worker.h"

#include "base/mix/mix.h"

bool gw_worker_was_away(const struct gw_worker *w)
{
	cgn_nsec now = cgn_loop_now(w->loop);
	return cgn_since(now, w->counted_at) > GW_COUNT_LATE ||
		(w->away_until != 0 && cgn_since(now, w->away_until) < GW_COUNT_EVERY);
}

double gw_random(struct gw_worker *w)
{
	return (double)(mix_splitmix(&w->random) >> 11) * 0x1p-53;
}
