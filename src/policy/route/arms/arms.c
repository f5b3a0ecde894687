/* SPDX-License-Identifier: Apache-2.0 */
/* arms: units are given arms, and the ends of requests are summed. */
#include <stdlib.h>
#include <string.h>

#include "arms_priv.h"
#include "base/core/alloc.h"
#include "base/core/err.h"
#include "base/mix/mix.h"

#define ARM_SALT   0x5eed0a5a11a7e001U
#define GROUP_SALT 0x5eed0a5a11a7e002U

struct arms *arms_new(void)
{
	struct arms *a = CGN_NEW(struct arms);
	a->tag = ARMS_TAG;
	return a;
}

void arms_free(struct arms **take)
{
	struct arms *a = CGN_TAKE_LIVE(take, ARMS_TAG);
	if (a == NULL)
		return;
	a->tag = 0;
	free(a);
}

static bool rules_equal(const struct arms_rules *a, const struct arms_rules *b)
{
	bool same = a->live == b->live && a->n == b->n && a->variant == b->variant &&
		!(a->share < b->share || b->share < a->share);
	for (size_t i = 0; same && i < a->n; i++)
		same = a->shadows[i] == b->shadows[i];
	return same;
}

void arms_set(struct arms *a, const struct arms_rules *rules)
{
	CGN_LIVE(a, ARMS_TAG);
	CGN_MUST(rules->n <= ARMS_SHADOWS);
	if (rules_equal(&a->rules, rules))
		return;
	a->rules = *rules;
	a->round++;
	memset(a->by_arm, 0, sizeof a->by_arm);
}

static uint8_t class_of(uint64_t tokens)
{
	uint8_t c = 0;
	for (uint64_t below = 256; c < ARMS_CLASSES - 1 && tokens >= below; below *= 4)
		c++;
	return c;
}

/* The same units follow on all routers: no number of the router is in the hash. */
static size_t arm_of(const struct arms_rules *r, uint64_t unit)
{
	double u = (double)(mix_seeded(unit ^ ARM_SALT) >> 11) / 9007199254740992.0;
	if (r->n == 0 || !(u < r->share))
		return 0;
	size_t i = (size_t)(u / r->share * (double)r->n);
	return 1 + (i < r->n ? i : r->n - 1);
}

struct arms_seat arms_seat(const struct arms *a, uint64_t unit, uint64_t tokens)
{
	CGN_LIVE(a, ARMS_TAG);
	size_t arm = arm_of(&a->rules, unit);
	return (struct arms_seat){.seated = a->rules.n > 0 && a->rules.share > 0,
		.policy = arm > 0 ? a->rules.shadows[arm - 1] : a->rules.live,
		.arm = (uint8_t)arm,
		.group = (uint8_t)(mix_seeded(unit ^ GROUP_SALT) % ARMS_GROUPS),
		.length = class_of(tokens),
		.round = a->round};
}

static void figure_add(struct arms_sums *s, struct arms_cell *c, enum arms_figure f, double sum, double over)
{
	if (sum < 0 || !(over > 0))
		return;
	s->n[f]++;
	c->sum[f] += sum;
	c->over[f] += over;
}

void arms_add(struct arms *a, const struct arms_seat *seat, const struct arms_outcome *o)
{
	CGN_LIVE(a, ARMS_TAG);
	if (!seat->seated || seat->round != a->round)
		return;
	struct arms_sums *s = &a->by_arm[seat->arm];
	struct arms_cell *c = &s->cells[seat->group][seat->length];
	figure_add(s, c, ARMS_TTFT, o->ttft_ms, 1);
	figure_add(s, c, ARMS_ITL, o->stream_ms, o->gaps);
	figure_add(s, c, ARMS_FINISH, o->finish_ms, 1);
	figure_add(s, c, ARMS_CACHED, o->cached, o->prompt);
	figure_add(s, c, ARMS_FAILED, o->failed ? 1 : 0, 1);
}
