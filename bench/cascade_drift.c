/* SPDX-License-Identifier: Apache-2.0 */
/* bench cascade_drift: when a cascade's calibration notices that its small model got worse, and how often it is alarmed by nothing.
 *
 *     bench_cascade_drift [--share S] [--max-error E] [--seeds N] [--flat E]
 *
 * Requests are drawn, and policy/answer/cascade/calibration learns from the share S of them, as in a router. An answer of doubt d,
 * from 0 to 1, is wrong with the probability d^4; with --flat, E whatever the doubt. After 4,000 requests the small model changes: its errors become more often, or
 * a share of the prompts gets sure and wrong answers. Noticed: no answer passes any more, because of an alarm or because the curve
 * tells too many errors. Prints one JSON object: for each change the requests until then, of all seeds. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mix/mix.h"
#include "policy/answer/cascade/calibration.h"

#define LEARN 4000  /* requests before the change */
#define MOST  20000 /* requests after it */
#define SEEDS 1000

struct change {
	const char *name;
	double times, more; /* An answer is wrong with the probability times * d^4 + more. */
	double sure;        /* Share of the prompts whose doubt is below 0.1 and whose answer is wrong. */
};
static const struct change changes[] = {
	{"nothing", 1, 0, 0},
	{"errors 2 times as often", 2, 0, 0},
	{"errors 4 times as often", 4, 0, 0},
	{"3 % more answers wrong", 1, 0.03, 0},
	{"5 % more answers wrong", 1, 0.05, 0},
	{"10 % more answers wrong", 1, 0.1, 0},
	{"20 % more answers wrong", 1, 0.2, 0},
	{"half of the answers wrong", 1, 0.5, 0},
	{"all answers wrong", 1, 1, 0},
	{"5 % of the prompts sure and wrong", 1, 0, 0.05},
	{"10 % of the prompts sure and wrong", 1, 0, 0.1},
	{"20 % of the prompts sure and wrong", 1, 0, 0.2},
	{"50 % of the prompts sure and wrong", 1, 0, 0.5},
	{"all prompts sure and wrong", 1, 0, 1},
};

struct world {
	struct calibration c;
	uint64_t seed;
	double share, max_error, flat; /* flat: 0: not given */
	uint64_t passed, wrong, alarms, compared;
};

static double next_uniform(uint64_t *seed)
{
	*seed += MIX_GOLDEN;
	return (double)(mix64(*seed) >> 11) / 9007199254740992.0;
}

static void request_ask(struct world *w, const struct change *how)
{
	double doubt = next_uniform(&w->seed), usual = w->flat > 0 ? w->flat : pow(doubt, 4),
	       error = fmin(1, how->times * usual + how->more);
	if (next_uniform(&w->seed) < how->sure) {
		doubt = 0.1 * next_uniform(&w->seed);
		error = 1;
	}
	bool wrong = next_uniform(&w->seed) < error;
	bool again = next_uniform(&w->seed) < calibration_share_of(&w->c, w->share, w->max_error);
	if (calibration_trust_of(&w->c, w->max_error) == CALIBRATION_TRUSTED) {
		bool passes = calibration_passes(&w->c.curve, doubt, w->max_error);
		w->passed += passes;
		w->wrong += passes && wrong;
		if (calibration_saw(&w->c, doubt, passes))
			w->alarms++;
	}
	if (!again)
		return;
	w->compared++;
	if (calibration_add(&w->c, doubt, wrong) && w->c.state == CALIBRATION_DRIFTED)
		w->alarms++;
}

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

struct sums {
	uint32_t delays[SEEDS];
	uint32_t n, soon, missed;
	double passed, wrong, wrong_before; /* until it was noticed; and the share before the change */
	double alarms, requests, compared;  /* while nothing changes */
};

static void seed_run(struct world *w, const struct change *how, struct sums *s)
{
	uint32_t n = 0;
	for (int i = 0; i < LEARN; i++)
		request_ask(w, &changes[0]);
	/* After a false alarm the small model is trusted later. */
	while (calibration_trust_of(&w->c, w->max_error) != CALIBRATION_TRUSTED)
		request_ask(w, &changes[0]);
	s->wrong_before += (double)w->wrong / (double)w->passed / SEEDS;
	w->passed = w->wrong = w->compared = 0;
	uint64_t alarms = w->alarms;
	if (how == changes) {
		for (; n < MOST; n++)
			request_ask(w, how);
		s->alarms += (double)(w->alarms - alarms);
		s->requests += MOST;
		s->compared += (double)w->compared;
		return;
	}
	enum calibration_trust trust;
	do {
		request_ask(w, how);
		trust = calibration_trust_of(&w->c, w->max_error);
		n++;
	} while (n < MOST && w->alarms == alarms && trust != CALIBRATION_UNPROVEN);
	s->passed += (double)w->passed;
	s->wrong += (double)w->wrong;
	s->soon += n <= 500;
	s->missed += n == MOST;
	s->delays[s->n++] = n;
}

static void change_put(struct json_out *o, const struct change *how, struct sums *s, double seeds)
{
	json_open(o, '{');
	json_key_z(o, "change", how->name);
	if (how == changes) {
		json_key_f64(o, "false_alarms_per_10000", 10000 * s->alarms / s->requests);
		json_key_f64(o, "compared_share", s->compared / s->requests);
		json_key_f64(o, "wrong_share", s->wrong_before * SEEDS / seeds);
	} else {
		qsort(s->delays, s->n, sizeof *s->delays, by_size);
		json_key_u64(o, "requests_p50", s->delays[s->n / 2]);
		json_key_u64(o, "requests_p90", s->delays[s->n * 9 / 10]);
		json_key_f64(o, "within_500", s->soon / seeds);
		json_key_f64(o, "not_within_20000", s->missed / seeds);
		json_key_f64(o, "wrong_passed", s->wrong / seeds);
		json_key_f64(o, "wrong_share", s->passed > 0 ? s->wrong / s->passed : 0);
	}
	json_close(o, '}');
}

static double flag_number(int argc, char **argv, const char *name, double otherwise)
{
	for (int i = 1; i + 1 < argc; i++)
		if (strcmp(argv[i], name) == 0)
			return strtod(argv[i + 1], NULL);
	return otherwise;
}

int main(int argc, char **argv)
{
	static struct sums s;
	static struct world w;
	struct cgn_buf text = {0};
	struct json_out o = json_out_to(&text);
	double share = flag_number(argc, argv, "--share", 0.08),
	       max_error = flag_number(argc, argv, "--max-error", 0.1),
	       seeds = flag_number(argc, argv, "--seeds", 200), flat = flag_number(argc, argv, "--flat", 0);
	if (!(share > 0 && share <= 1 && max_error > 0 && max_error < 1 && seeds >= 1 && seeds <= SEEDS)) {
		(void)fprintf(stderr,
			"usage: bench_cascade_drift [--share 0..1] [--max-error 0..1] [--seeds 1..%d] [--flat 0..1]\n",
			SEEDS);
		return 2;
	}
	json_open(&o, '{');
	json_key_z(&o, "bench", "cascade_drift");
	json_key_f64(&o, "share", share);
	json_key_f64(&o, "max_error", max_error);
	json_key_f64(&o, "seeds", seeds);
	json_key_f64(&o, "flat", flat);
	json_key_open(&o, "results", '[');
	for (size_t i = 0; i < CGN_COUNT(changes); i++) {
		s = (struct sums){.n = 0};
		for (uint64_t seed = 1; seed <= (uint64_t)seeds; seed++) {
			w = (struct world){.seed = mix64(seed * 1000 + i),
				.share = share,
				.max_error = max_error,
				.flat = flat};
			seed_run(&w, &changes[i], &s);
		}
		change_put(&o, &changes[i], &s, seeds);
	}
	json_close(&o, ']');
	json_close(&o, '}');
	(void)printf("%.*s\n", (int)text.n, (const char *)text.p);
	cgn_buf_fini(&text);
	return 0;
}
