/* SPDX-License-Identifier: Apache-2.0 */
/* egress: limits how much the store serves, so that peers leave the network to the node's own work. */
#include "policy/kv/kvfetch/kvfetch.h"

#define KIB         ((uint64_t)1024)
#define BURST_PARTS 50 /* A burst is 1/50 s of the rate. */
#define DEFAULT_MS  2000
#define FULL_MS     10 /* Shortest wait when all streams are taken. */

void kvfetch_egress_init(struct kvfetch_egress *e, uint64_t bytes_per_second, unsigned max_streams)
{
	uint64_t kib = (bytes_per_second + KIB - 1) / KIB, burst = kib / BURST_PARTS;
	*e = (struct kvfetch_egress){.max_streams = max_streams};
	if (bytes_per_second == 0 || kib > RATE_MAX_UNITS)
		return;
	e->rate = (struct rate){.units = kib,
		.period = CGN_SEC,
		.burst = burst > KVFETCH_EGRESS_PIECE / KIB ? burst : KVFETCH_EGRESS_PIECE / KIB};
}

/* Time to send all admitted bytes. */
static uint64_t queue_ms(const struct kvfetch_egress *e)
{
	if (!rate_is_set(&e->rate))
		return 0;
	return (uint64_t)((double)e->promised / (double)KIB / (double)e->rate.units * 1000.0);
}

bool kvfetch_egress_admit(struct kvfetch_egress *e, uint64_t bytes, uint32_t budget_ms, uint32_t *wait_ms)
{
	uint64_t queue = queue_ms(e), most = budget_ms > 0 ? budget_ms : DEFAULT_MS;
	*wait_ms = (uint32_t)(queue < DEFAULT_MS ? queue : DEFAULT_MS);
	if (e->streams >= e->max_streams) {
		*wait_ms = *wait_ms > FULL_MS ? *wait_ms : FULL_MS;
		return false;
	}
	if (queue > 0 && queue >= most)
		return false;
	e->streams++;
	e->promised += bytes;
	return true;
}

uint64_t kvfetch_egress_take(struct kvfetch_egress *e, cgn_nsec now, uint64_t want, cgn_nsec *wait)
{
	uint64_t n = want < KVFETCH_EGRESS_PIECE ? want : KVFETCH_EGRESS_PIECE;
	*wait = 0;
	if (rate_is_set(&e->rate)) {
		struct rate_answer a = rate_take(&e->rate, &e->full_at, now, (n + KIB - 1) / KIB);
		if (!a.granted) {
			*wait = a.wait;
			return 0;
		}
	}
	e->promised -= n < e->promised ? n : e->promised;
	return n;
}

void kvfetch_egress_end(struct kvfetch_egress *e, uint64_t unsent)
{
	CGN_MUST(e->streams > 0);
	e->streams--;
	e->promised -= unsent < e->promised ? unsent : e->promised;
}
