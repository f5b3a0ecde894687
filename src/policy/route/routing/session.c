/* SPDX-License-Identifier: Apache-2.0 */
/* session: consistent hashing with bounded loads. Each session ranks all nodes by rendezvous hashing and goes
 * to the first whose demand, with this request, stays within session_bound times the mean plus one. So a
 * session moves only while its node is ahead of the others, always to the same next one, and a node that
 * comes or goes moves only its own sessions. */
#include "base/mix/mix.h"
#include "routing_priv.h"

/* Return the requests that a node may have before this one. */
static double most_demand(const struct route_ask *ask, const struct route_cand *cands, size_t n)
{
	double sum = 1, bound = ask->session_bound > 1 ? ask->session_bound : 1;
	for (size_t i = 0; i < n; i++)
		sum += (double)route_demand(&cands[i]);
	return bound * sum / (double)n;
}

struct route_pick route_pick_session(const struct route_ask *ask, const struct route_cand *cands, size_t n)
{
	if (ask->session == 0)
		return route_pick_least_loaded(ask, cands, n);
	struct route_pick p = route_nobody(n);
	double most = n > 0 ? most_demand(ask, cands, n) : 0;
	uint64_t top = 0;
	bool within = false;
	for (size_t i = 0; i < n; i++) {
		bool fits = (double)route_demand(&cands[i]) <= most;
		uint64_t rank = mix_murmur(ask->session ^ cands[i].node_id_hash) | 1;
		if (!route_has_room(ask, &cands[i]) || fits < within || (fits == within && rank <= top))
			continue;
		p.verdict = ROUTE_PICKED;
		p.index = i;
		within = fits;
		top = rank;
	}
	if (p.verdict == ROUTE_PICKED)
		p.score = route_score(ask, &cands[p.index]);
	return p;
}
