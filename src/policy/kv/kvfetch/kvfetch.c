/* SPDX-License-Identifier: Apache-2.0 */
/* kvfetch: the cost of a fetch, and the choice of the peer. */
#include "policy/kv/kvfetch/kvfetch.h"

#define FIRST_MS     1.0
#define FIRST_RATE   100e3 /* Bytes per ms. */
#define WEIGHT       0.125
#define LEAST_RATE   1.0
#define REST_FIRST   (50 * CGN_MSEC)
#define REST_LONGEST (5 * CGN_SEC)

/* ---- how far ---- */

enum kvfetch_distance kvfetch_distance(const struct kvfetch_place *a, const struct kvfetch_place *b)
{
	if (!cgn_str_eq(a->region, b->region))
		return KVFETCH_FAR;
	return a->rack.n > 0 && cgn_str_eq(a->rack, b->rack) ? KVFETCH_RACK : KVFETCH_REGION;
}

const char *kvfetch_distance_text(enum kvfetch_distance d)
{
	static const char *const names[] =
		{[KVFETCH_RACK] = "rack", [KVFETCH_REGION] = "region", [KVFETCH_FAR] = "far"};
	return d < KVFETCH_DISTANCES ? names[d] : "unknown";
}

/* ---- how long ---- */

void kvfetch_path_init(struct kvfetch_path *p)
{
	*p = (struct kvfetch_path){.first_ms = FIRST_MS, .bytes_per_ms = FIRST_RATE};
}

/* The first sample replaces the initial value. */
static void path_average(const struct kvfetch_path *p, double *mean, double sample)
{
	double w = p->samples == 0 ? 1.0 : WEIGHT;
	*mean += w * (sample - *mean);
}

void kvfetch_path_first(struct kvfetch_path *p, double ms)
{
	path_average(p, &p->first_ms, ms > 0 ? ms : 0);
}

void kvfetch_path_trip(struct kvfetch_path *p, double ms)
{
	if (p->samples == 0 && ms > p->first_ms)
		p->first_ms = ms;
}

void kvfetch_path_rate(struct kvfetch_path *p, uint64_t bytes, double ms)
{
	if (bytes < KVFETCH_RATE_BYTES || !(ms > 0))
		return;
	path_average(p, &p->bytes_per_ms, (double)bytes / ms);
	if (p->bytes_per_ms < LEAST_RATE)
		p->bytes_per_ms = LEAST_RATE;
	p->samples++;
}

double kvfetch_ms(const struct kvfetch_path *p, uint64_t bytes)
{
	return p->first_ms + ((double)p->under_way + (double)bytes) / p->bytes_per_ms;
}

/* ---- whether ---- */

double kvfetch_recompute_ms(const struct kvfetch_ask *a)
{
	return a->budget_ms > 0 ? a->budget_ms : a->tokens * a->ms_per_token;
}

bool kvfetch_worth(const struct kvfetch_path *p, const struct kvfetch_ask *a)
{
	double recompute = kvfetch_recompute_ms(a);
	return !(recompute > 0) || kvfetch_ms(p, a->bytes) < recompute;
}

bool kvfetch_keep(uint64_t budget_bytes, uint64_t used_bytes, uint64_t size, unsigned wanted)
{
	return wanted >= 2 || (used_bytes <= budget_bytes && size <= budget_bytes - used_bytes);
}

/* ---- from whom ---- */

static bool peer_is_better(const struct kvfetch_peer *a, const struct kvfetch_peer *b, cgn_nsec now)
{
	bool a_busy = a->busy_until > now, b_busy = b->busy_until > now;
	if (a_busy != b_busy)
		return b_busy;
	if (a->distance != b->distance)
		return a->distance < b->distance;
	if (a->in_ram != b->in_ram)
		return a->in_ram;
	return a->ms < b->ms;
}

size_t kvfetch_choose(const struct kvfetch_peer *peers, size_t n, cgn_nsec now)
{
	size_t best = n;
	for (size_t i = 0; i < n; i++)
		if (!peers[i].tried && (best == n || peer_is_better(&peers[i], &peers[best], now)))
			best = i;
	return best;
}

cgn_nsec kvfetch_patience(const struct kvfetch_path *p)
{
	double ms = 8 * p->first_ms;
	ms = ms > 20 ? ms : 20;
	return (cgn_nsec)((ms < 500 ? ms : 500) * (double)CGN_MSEC);
}

cgn_nsec kvfetch_rest(uint32_t wait_ms, unsigned failures)
{
	cgn_nsec rest = wait_ms * CGN_MSEC;
	if (failures > 0)
		rest = failures < 16 ? REST_FIRST << (failures - 1) : REST_LONGEST;
	return rest < REST_LONGEST ? rest : REST_LONGEST;
}
