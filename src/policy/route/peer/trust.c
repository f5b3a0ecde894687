/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/peer/trust.h"

#include <math.h>

#include "policy/route/peer/summary.h"

#define GAIN       0.25
#define DEMOTES    0.65 /* |error| after four bad answers in a row: 1 - 0.75^4 = 0.68 */
#define AFTERWARDS 0.55 /* |error| when a demotion ends: one more bad answer makes it 0.66 */
#define FORGETS    0.1
#define LACK       0.25 /* share of the prompt that may be missing in the cache */
#define LACK_LEAST 64   /* tokens */
#define LATE       3.0  /* times as long as predicted, */
#define LATE_LEAST (500 * CGN_MSEC)
#define LATE_MOST  2000.0 /* greatest correction, milliseconds */

struct peer_forecast peer_foresee(const struct peer_load *load, const struct peer_trust *trust, cgn_nsec way,
	uint64_t tokens, uint64_t cached)
{
	cached = cached < tokens ? cached : tokens;
	const double most = 1e15;
	const double prefill = fmin((double)(tokens - cached) * (double)load->prefill_ns, most);
	const double there = (double)load->wait_us * 1e3 + prefill + trust->late_ms * 1e6;
	return (struct peer_forecast){.known = load->prefill_ns > 0 && load->nodes > 0,
		.ttft = way + (cgn_nsec)fmin(there, most),
		.prefill = (cgn_nsec)prefill,
		.cached = cached,
		.tokens = tokens};
}

static bool cache_lacks(const struct peer_forecast *f, const struct peer_shown *s)
{
	if (!s->counted || f->cached <= s->cached)
		return false;
	uint64_t less = f->cached - s->cached;
	return less >= LACK_LEAST && (double)less > LACK * (double)(s->tokens > 0 ? s->tokens : f->tokens);
}

static bool answer_is_late(const struct peer_forecast *f, const struct peer_shown *s)
{
	return f->known && s->ttft > 0 && (double)s->ttft > LATE * (double)f->ttft + (double)LATE_LEAST;
}

static void late_learn(struct peer_trust *t, const struct peer_forecast *f, const struct peer_shown *s)
{
	if (!f->known || s->ttft == 0)
		return;
	double error = ((double)s->ttft - (double)f->ttft) / 1e6;
	t->late_ms = fmin(fmax(t->late_ms + GAIN / 2 * error, 0), LATE_MOST);
}

static void trust_demote(struct peer_trust *t, cgn_nsec now)
{
	cgn_nsec pause = PEER_PAUSE;
	for (unsigned i = 0; i < t->strikes && pause < PEER_PAUSE_MOST; i++)
		pause *= 2;
	t->until = now + (pause < PEER_PAUSE_MOST ? pause : PEER_PAUSE_MOST);
	t->error = AFTERWARDS;
	t->strikes++;
}

bool peer_trust_learn(struct peer_trust *t, const struct peer_forecast *f, const struct peer_shown *s,
	cgn_nsec now)
{
	bool bad = cache_lacks(f, s) || answer_is_late(f, s);
	t->good += !bad;
	t->bad += bad;
	if (!bad)
		late_learn(t, f, s);
	if (peer_is_demoted(t, now))
		return false;
	t->error += GAIN * ((bad ? 1 : 0) - t->error);
	if (t->error < FORGETS && t->strikes > 0) {
		t->strikes--;
		t->error = AFTERWARDS / 2;
	}
	if (t->error < DEMOTES)
		return false;
	trust_demote(t, now);
	return true;
}

double peer_trust_share(const struct peer_trust *t, cgn_nsec now)
{
	return peer_is_demoted(t, now) ? 0 : 1 - t->error;
}
