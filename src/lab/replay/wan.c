/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/replay/wan.h"

#include "base/mix/mix.h"

#define PACKET    1400
#define LAST_ONES 3 /* Packets whose loss no later packet shows. */
#define PATIENCE  (200 * CGN_MSEC)
#define DOUBLINGS 12

/* Number the pairs A-B, A-C, ..., B-C, ... */
static size_t pair_number(uint32_t n, uint32_t a, uint32_t b)
{
	uint32_t low = a < b ? a : b, high = a < b ? b : a;
	return (size_t)low * n - (size_t)low * (low + 1) / 2 + (high - low - 1);
}

cgn_nsec wan_round_trip(const struct federation_cfg *cfg, uint32_t a, uint32_t b)
{
	return cfg->way_ms[pair_number(cfg->clusters, a, b) % cfg->n_ways] * CGN_MSEC;
}

bool wan_is_cut(const struct federation_cfg *cfg, uint32_t a, uint32_t b, cgn_nsec now)
{
	for (size_t i = 0; i < cfg->n_cuts; i++) {
		const struct federation_cut *c = &cfg->cuts[i];
		if (((c->a == a && c->b == b) || (c->a == b && c->b == a)) && now >= c->from && now < c->to)
			return true;
	}
	return false;
}

static bool packet_is_lost(struct wan *w)
{
	return w->cfg->loss > 0 && (double)(mix_splitmix(&w->random) >> 11) * 0x1p-53 < w->cfg->loss;
}

/* Return when a packet that is first sent at |at| arrives; the first time that it is missed, after |missed|. */
static cgn_nsec packet_arrival(struct wan *w, uint32_t a, uint32_t b, cgn_nsec at, cgn_nsec missed)
{
	const cgn_nsec way = wan_round_trip(w->cfg, a, b);
	cgn_nsec wait = missed;
	for (unsigned i = 0; i <= DOUBLINGS; i++) {
		bool cut = wan_is_cut(w->cfg, a, b, at) || wan_is_cut(w->cfg, a, b, at + way / 2);
		if (!cut && !packet_is_lost(w))
			return at + way / 2;
		if (cut && wait < PATIENCE) /* No later packet arrives either. */
			wait += PATIENCE;
		at += wait;
		wait = wait < PATIENCE ? PATIENCE + way : 2 * wait;
	}
	return UINT64_MAX;
}

cgn_nsec wan_arrival(struct wan *w, uint32_t a, uint32_t b, size_t bytes, cgn_nsec now)
{
	const cgn_nsec way = wan_round_trip(w->cfg, a, b);
	const size_t packets = bytes / PACKET + 1;
	cgn_nsec last = 0;
	for (size_t i = 0; i < packets; i++) {
		cgn_nsec at = packet_arrival(w, a, b, now, i + LAST_ONES < packets ? way : PATIENCE + way);
		last = at > last ? at : last;
	}
	return last;
}
