/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/fit/fit.h"

#include <math.h>
#include <stdlib.h>

#include "lab/fit/solve.h"

#define ROUNDS       40
#define NUDGE        0.02  /* Change of a term's logarithm for its derivative. */
#define LEAST_NS     1e-3  /* A term this small is none. */
#define SOFT_NS      200e3 /* Added to times before their logarithms are compared. */
#define ANSWER_LEAST 4     /* Tokens of an answer whose decode time is compared. */
#define MEETINGS     ((size_t)4 << 20)
#define BLOCK_TOKENS (1U << 24)
/* A term with a larger error, or with a smaller share of the requests' time, is unknown. */
#define ERROR_MOST  0.5
#define SHARE_LEAST 0.001

const char *const fit_term_labels[FIT_TERMS] = {
#define TERM(id, label, flag, help) label,
#include "lab/fit/terms.def"
#undef TERM
};

/* The engine's work beside a request, as the measurements tell it. */
struct met {
	bool alone;              /* No other prompt was in the engine until its first token. */
	double streams, context; /* When it came: decoding sequences, and tokens of their context. */
	/* Over the steps in which it decoded: tokens of other sequences, and tokens of context of all. */
	double others, read;
	size_t from, n; /* Prompts that were computed meanwhile, in fit.meetings. */
	/* When the computing of its prompt began: prompts are computed one after the other. */
	double begun;
};
/* A prompt of which |share| was computed while another request decoded. */
struct meeting {
	uint32_t prompt;
	float share;
};
struct guess { /* Times of a request when the engine is played, from its arrival. */
	cgn_nsec came, first, ended;
};

struct fit {
	const struct fit_request *requests;
	size_t n;
	struct fit_cfg cfg;
	bool overlaps;
	bool held[FIT_TERMS];     /* Terms that the requests do not tell: they are left out. */
	struct met *mets;         /* Owned, as all: one for each request. */
	struct meeting *meetings; /* At most MEETINGS. */
	size_t n_meetings;
	double *prompts;          /* Time that each prompt adds to steps of others. */
	double *residuals;        /* 2 for each request; NAN: not compared. */
	double *tried, *jacobian; /* 2 and 2 * FIT_TERMS for each request. */
	double *sorted;
	struct guess *guesses;
	bool no_memory; /* Sticky. */
};

/* ---- measured work ---- */

static double first_at(const struct fit_request *q)
{
	return (double)q->came + (double)q->first;
}

static double end_at(const struct fit_request *q)
{
	return (double)q->came + (double)q->ended;
}

static double overlap_of(double from, double to, double other_from, double other_to)
{
	double a = from > other_from ? from : other_from, b = to < other_to ? to : other_to;
	return b > a ? b - a : 0;
}

/* Add the work of request |other| to that beside request |i|. */
static void met_add(struct fit *f, size_t i, size_t other)
{
	const struct fit_request *q = &f->requests[i], *o = &f->requests[other];
	struct met *m = &f->mets[i];
	double came = (double)q->came, first = first_at(q), end = end_at(q);
	double o_first = first_at(o), o_end = end_at(o), o_came = (double)o->came;
	double context = o->prompt + o->answer / 2.0;
	if (o_came < first && o_first > came)
		m->alone = false;
	if (o_first <= came && o_end > came) {
		m->streams += 1;
		m->context += context;
	}
	double decoded = overlap_of(first, end, o_first, o_end);
	if (decoded > 0) {
		/* Both get a token in each step that they share. */
		double tokens =
			decoded * ((o->answer - 1) / (o_end - o_first) + (q->answer - 1) / (end - first)) / 2;
		m->others += tokens;
		m->read += tokens * context;
	}
	double computed = overlap_of(first, end, f->mets[other].begun, o_first);
	if (computed > 0 && f->n_meetings < MEETINGS) {
		f->meetings[f->n_meetings++] = (struct meeting){(uint32_t)other,
			(float)(computed / (o_first - f->mets[other].begun))};
		m->n++;
	}
}

/* A prompt begins when those before it have their first tokens, and no less than a hair before its own. */
static void begins_fill(struct fit *f)
{
	for (uint32_t node = 0; node < f->cfg.nodes; node++) {
		double free_at = 0;
		for (size_t i = 0; i < f->n; i++) {
			const struct fit_request *q = &f->requests[i];
			if (q->node != node)
				continue;
			double first = first_at(q), last = first - 1;
			f->mets[i].begun = fmin(last, fmax((double)q->came, free_at));
			free_at = fmax(free_at, first);
		}
	}
}

static void met_fill(struct fit *f, size_t i)
{
	const struct fit_request *q = &f->requests[i];
	f->mets[i] = (struct met){.alone = q->first > 0,
		.read = (q->answer - 1) * (q->prompt + q->answer / 2.0),
		.from = f->n_meetings,
		.begun = f->mets[i].begun};
	for (size_t k = 0; k < f->n && (double)f->requests[k].came < end_at(q); k++)
		if (k != i && f->requests[k].node == q->node)
			met_add(f, i, k);
}

/* ---- the terms' times ---- */

/* Add up a step that computes |chunk| prompt tokens behind |before| beside |streams| sequences, without their context. */
static double step_ns(const struct fit *f, const double *terms, double chunk, double before, double streams)
{
	double linear = terms[FIT_TOKEN] * chunk;
	if (f->overlaps)
		linear = fmax(terms[FIT_STEP], terms[FIT_TOKEN] * (chunk + streams));
	else if (streams > 0)
		linear += terms[FIT_STEP];
	return linear + terms[FIT_SEQUENCE] * fmax(0, streams - 1) + terms[FIT_CONTEXT] * before +
		terms[FIT_PAIR] * chunk * (before + chunk / 2);
}

/* Return the time of the steps that compute the prompt; |steps|: their number. */
static double prompt_ns(const struct fit *f, const double *terms, size_t i, double *steps)
{
	const struct fit_request *q = &f->requests[i];
	const double streams = f->mets[i].streams, budget = fmax(1, f->cfg.step_tokens - streams);
	double sum = 0;
	*steps = 0;
	for (double before = q->cached; before < q->prompt; before += budget) {
		sum += step_ns(f, terms, fmin(budget, q->prompt - before), before, streams);
		*steps += 1;
	}
	return sum;
}

/* Return the time to the first token of a request that came while no other prompt was computed, half a step late. */
static double first_ns(const struct fit *f, const double *terms, size_t i)
{
	const struct met *m = &f->mets[i];
	double steps, sum = prompt_ns(f, terms, i, &steps) + terms[FIT_DELAY],
		      read = terms[FIT_CONTEXT] * m->context;
	if (m->streams > 0)
		sum += 0.5 * (step_ns(f, terms, 0, 0, m->streams) + read);
	return sum + read * steps;
}

static double decode_ns(const struct fit *f, const double *terms, size_t i)
{
	const struct met *m = &f->mets[i];
	double sum = terms[FIT_STEP] * (f->requests[i].answer - 1) + terms[FIT_SEQUENCE] * m->others +
		terms[FIT_CONTEXT] * m->read;
	for (size_t k = m->from; k < m->from + m->n; k++)
		sum += (double)f->meetings[k].share * f->prompts[f->meetings[k].prompt];
	return sum;
}

static double distance_of(double model, double measured)
{
	return log((model + SOFT_NS) / (measured + SOFT_NS));
}

/* Fill |out| with 2 residuals for each request. */
static void terms_judge(struct fit *f, const double *terms, double *out)
{
	double steps;
	for (size_t i = 0; i < f->n; i++) {
		double alone = prompt_ns(f, terms, i, &steps);
		f->prompts[i] = alone -
			steps * (terms[FIT_STEP] + terms[FIT_SEQUENCE] * fmax(0, f->mets[i].streams - 1));
		if (!f->overlaps && f->mets[i].streams < 1)
			f->prompts[i] = alone;
	}
	for (size_t i = 0; i < f->n; i++) {
		const struct fit_request *q = &f->requests[i];
		bool decodes = q->first > 0 && q->answer >= ANSWER_LEAST && q->ended > q->first;
		out[2 * i] =
			f->mets[i].alone ? distance_of(first_ns(f, terms, i), (double)q->first) : (double)NAN;
		out[2 * i + 1] = decodes ? distance_of(decode_ns(f, terms, i), (double)(q->ended - q->first))
					 : (double)NAN;
	}
}

/* ---- the engine, played ---- */

static CGN_RC engine_make(const struct fit *f, const double *terms, struct enginemodel **out)
{
	const struct enginemodel_cfg cfg = {.prefill_tokens_per_s = 1e9 / terms[FIT_TOKEN],
		.decode = (cgn_nsec)(terms[FIT_STEP] < 1 ? 1 : terms[FIT_STEP]),
		.batch_effect = terms[FIT_SEQUENCE] / fmax(1, terms[FIT_STEP]),
		.terms = {terms[FIT_CONTEXT], terms[FIT_PAIR], f->overlaps},
		.max_batch = f->cfg.max_batch,
		.step_tokens = f->cfg.step_tokens,
		.max_queue = (uint32_t)f->n,
		.kv_blocks = f->cfg.max_batch + 1,
		.block_tokens = BLOCK_TOKENS, /* A request has one block: memory is never short. */
		.keeps_none = true};
	return enginemodel_new(&cfg, out);
}

static void guess_submit(struct fit *f, struct enginemodel *m, size_t i)
{
	const struct fit_request *q = &f->requests[i];
	struct enginemodel_job *job = NULL;
	f->guesses[i] = (struct guess){.came = q->came};
	const struct enginemodel_job_spec spec = {.prompt_tokens = q->prompt,
		.answer_tokens = q->answer,
		.handed = q->cached,
		.user = &f->guesses[i]};
	f->no_memory |= !cgn_ok(enginemodel_submit(m, &spec, &job));
}

static cgn_nsec engine_step(struct enginemodel *m, cgn_nsec now)
{
	struct enginemodel_orders o;
	enginemodel_step(m, now, &o);
	for (size_t i = 0; i < o.n_progress; i++) {
		struct guess *g = o.progress[i].user;
		if (o.progress[i].given == 1)
			g->first = cgn_since(now, g->came);
		if (o.progress[i].finished)
			g->ended = cgn_since(now, g->came);
	}
	return o.wake_at;
}

/* Play the requests of one node. */
static void node_play(struct fit *f, const double *terms, uint32_t node)
{
	struct enginemodel *m = NULL;
	cgn_nsec wake = 0;
	if (!cgn_ok(engine_make(f, terms, &m))) {
		f->no_memory = true;
		return;
	}
	for (size_t i = 0; i < f->n; i++) {
		if (f->requests[i].node != node)
			continue;
		while (wake != 0 && wake <= f->requests[i].came)
			wake = engine_step(m, wake);
		guess_submit(f, m, i);
		if (wake == 0)
			wake = engine_step(m, f->requests[i].came);
	}
	while (wake != 0)
		wake = engine_step(m, wake);
	enginemodel_free(&m);
}

static void model_play(struct fit *f, const double *terms)
{
	for (uint32_t node = 0; node < f->cfg.nodes; node++)
		node_play(f, terms, node);
}

/* ---- distances ---- */

static int double_cmp(const void *a, const void *b)
{
	const double *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

/* Sort |v| and return its quantile; 0 without values. */
static double quantile_of(double *v, size_t n, double q)
{
	qsort(v, n, sizeof *v, double_cmp);
	return n > 0 ? v[(size_t)(q * (double)(n - 1) + 0.5)] : 0;
}

/* Return the median distance of the residuals at |first| and each second one behind it; |step| 1: of all. */
static double distance_median(const struct fit *f, size_t first, size_t step)
{
	size_t n = 0;
	for (size_t i = first; i < 2 * f->n; i += step)
		if (!isnan(f->residuals[i]))
			f->sorted[n++] = fabs(f->residuals[i]);
	return quantile_of(f->sorted, n, 0.5);
}

static double huber_cost(double r, double k)
{
	double a = fabs(r);
	return isnan(r) ? 0 : a <= k ? a * a : 2 * k * a - k * k;
}

static double cost_sum(const struct fit *f, const double *residuals, double k)
{
	double sum = 0;
	for (size_t i = 0; i < 2 * f->n; i++)
		sum += huber_cost(residuals[i], k);
	return sum;
}

/* ---- better terms ---- */

static void terms_of(const struct fit *f, const double logs[FIT_TERMS], double out[FIT_TERMS])
{
	for (int t = 0; t < FIT_TERMS; t++)
		out[t] = f->held[t] ? LEAST_NS : exp(logs[t]);
}

static void derivatives_fill(struct fit *f, const double logs[FIT_TERMS])
{
	for (int t = 0; t < FIT_TERMS; t++) {
		double nudged[FIT_TERMS], terms[FIT_TERMS];
		for (int side = 0; side < 2; side++) {
			memcpy(nudged, logs, sizeof nudged);
			nudged[t] += side == 0 ? NUDGE : -NUDGE;
			terms_of(f, nudged, terms);
			terms_judge(f, terms, f->tried);
			for (size_t i = 0; i < 2 * f->n; i++) {
				double *d = &f->jacobian[i * FIT_TERMS + (size_t)t];
				*d = side == 0 ? f->tried[i] : (*d - f->tried[i]) / (2 * NUDGE);
			}
		}
	}
}

struct normal {
	double a[SOLVE_MOST][SOLVE_MOST], b[FIT_TERMS];
	double weight, squares; /* Sums over the residuals. */
};

/* Sum up the normal equations with Huber's weights. */
static void normal_fill(const struct fit *f, double k, struct normal *out)
{
	*out = (struct normal){0};
	for (size_t i = 0; i < 2 * f->n; i++) {
		double r = f->residuals[i], a = fabs(r);
		const double *j = &f->jacobian[i * FIT_TERMS];
		if (isnan(r))
			continue;
		double w = a <= k ? 1 : k / a;
		out->weight += w;
		out->squares += w * r * r;
		for (int p = 0; p < FIT_TERMS; p++) {
			out->b[p] -= w * j[p] * r;
			for (int q = 0; q < FIT_TERMS; q++)
				out->a[p][q] += w * j[p] * j[q];
		}
	}
}

/* Add |damp| to the diagonal, and a little to that of terms that change nothing. Return the step. */
static bool step_solve(const struct normal *n, double damp, double out[FIT_TERMS])
{
	struct normal d = *n;
	double inverse[SOLVE_MOST][SOLVE_MOST];
	for (int p = 0; p < FIT_TERMS; p++)
		d.a[p][p] += damp * n->a[p][p] + 1e-9 * (n->weight + 1);
	if (!solve_invert(d.a, FIT_TERMS, inverse))
		return false;
	for (int p = 0; p < FIT_TERMS; p++) {
		out[p] = 0;
		for (int q = 0; q < FIT_TERMS; q++)
			out[p] += inverse[p][q] * n->b[q];
		out[p] = fmax(-1, fmin(1, out[p]));
	}
	return true;
}

/* Take |next| if the model is nearer with it. */
static bool terms_try(struct fit *f, double k, const double next[FIT_TERMS], double logs[FIT_TERMS])
{
	double terms[FIT_TERMS];
	terms_of(f, next, terms);
	terms_judge(f, terms, f->tried);
	if (!(cost_sum(f, f->tried, k) < cost_sum(f, f->residuals, k)))
		return false;
	memcpy(f->residuals, f->tried, 2 * f->n * sizeof *f->residuals);
	memcpy(logs, next, FIT_TERMS * sizeof *next);
	return true;
}

/* Try the step of these normal equations with more and more damping; true: |logs| are better. */
static bool step_take(struct fit *f, const struct normal *n, double k, double *damp, double logs[FIT_TERMS])
{
	double step[FIT_TERMS], next[FIT_TERMS];
	for (int tries = 0; tries < 6; tries++, *damp *= 4) {
		if (!step_solve(n, *damp, step))
			continue;
		for (int t = 0; t < FIT_TERMS; t++)
			next[t] = fmax(log(LEAST_NS), logs[t] + step[t]);
		if (!terms_try(f, k, next, logs))
			continue;
		*damp = fmax(1e-4, *damp / 8);
		return true;
	}
	return false;
}

static double robust_bound(const struct fit *f)
{
	return fmax(0.01, 2 * distance_median(f, 0, 1));
}

/* Improve |logs| until nothing helps. Return the normal equations of the end, for the errors. */
static void terms_improve(struct fit *f, double logs[FIT_TERMS], struct normal *out)
{
	double damp = 0.01, terms[FIT_TERMS];
	terms_of(f, logs, terms);
	terms_judge(f, terms, f->residuals);
	for (int round = 0; round < ROUNDS; round++) {
		double k = robust_bound(f);
		derivatives_fill(f, logs);
		normal_fill(f, k, out);
		if (!step_take(f, out, k, &damp, logs))
			break;
	}
}

/* ---- a first guess ---- */

static double per_token(const struct fit_request *q)
{
	return q->first > 0 && q->answer >= ANSWER_LEAST ? (double)(q->ended - q->first) / (q->answer - 1)
							 : (double)NAN;
}

static double per_prompt_token(const struct fit_request *q)
{
	return q->first > 0 ? (double)q->first / (q->prompt - q->cached) : (double)NAN;
}

static double request_quantile(struct fit *f, double (*of)(const struct fit_request *), double q)
{
	size_t n = 0;
	for (size_t i = 0; i < f->n; i++) {
		double v = of(&f->requests[i]);
		if (!isnan(v))
			f->sorted[n++] = v;
	}
	double v = quantile_of(f->sorted, n, q);
	return v > 1 ? v : 1;
}

static void first_guess(struct fit *f, double logs[FIT_TERMS])
{
	double step = request_quantile(f, per_token, 0.25),
	       token = request_quantile(f, per_prompt_token, 0.1);
	logs[FIT_STEP] = log(step);
	logs[FIT_TOKEN] = log(token);
	logs[FIT_SEQUENCE] = log(step * 1e-2);
	logs[FIT_CONTEXT] = log(step * 1e-5);
	logs[FIT_PAIR] = log(token * 1e-5);
	logs[FIT_DELAY] = log(1e6);
}

/* ---- the report ---- */

static double time_sum(const struct fit *f, const double terms[FIT_TERMS])
{
	double sum = 0;
	for (size_t i = 0; i < f->n; i++)
		sum += (double)f->guesses[i].ended + terms[FIT_DELAY];
	return sum;
}

/* Play the engine with all terms, and without each one. */
static void shares_fill(struct fit *f, const double terms[FIT_TERMS], struct fit_result *out)
{
	model_play(f, terms);
	const double all = time_sum(f, terms);
	for (int t = 0; t < FIT_TERMS; t++) {
		double without[FIT_TERMS];
		memcpy(without, terms, sizeof without);
		without[t] = LEAST_NS;
		model_play(f, without);
		out->terms[t].share = 1 - time_sum(f, without) / all;
	}
	model_play(f, terms);
}

/* A term that was known before another one was held has no smaller error by that. */
static void errors_fill(const struct fit *f, const struct normal *n, struct fit_result *out)
{
	double inverse[SOLVE_MOST][SOLVE_MOST] = {{0}};
	struct normal d = *n;
	double variance = n->squares / fmax(1, n->weight - FIT_TERMS);
	for (int t = 0; t < FIT_TERMS; t++)
		d.a[t][t] += 1e-9 * (n->weight + 1);
	bool known = solve_invert(d.a, FIT_TERMS, inverse);
	for (int t = 0; t < FIT_TERMS; t++) {
		double before = out->terms[t].known ? out->terms[t].error : 0;
		out->terms[t].error = known && !f->held[t] ? fmax(before, sqrt(variance * inverse[t][t]))
							   : (double)INFINITY;
	}
}

/* ---- quantiles ---- */

static double ttft_guessed(const struct fit *f, const double terms[FIT_TERMS], size_t i)
{
	return f->requests[i].first > 0 ? (double)f->guesses[i].first + terms[FIT_DELAY] : (double)NAN;
}

static double ttft_measured(const struct fit *f, const double terms[FIT_TERMS], size_t i)
{
	(void)terms;
	return f->requests[i].first > 0 ? (double)f->requests[i].first : (double)NAN;
}

static double itl_guessed(const struct fit *f, const double terms[FIT_TERMS], size_t i)
{
	(void)terms;
	const struct guess *g = &f->guesses[i];
	return isnan(per_token(&f->requests[i]))
		? (double)NAN
		: (double)cgn_since(g->ended, g->first) / (f->requests[i].answer - 1);
}

static double itl_measured(const struct fit *f, const double terms[FIT_TERMS], size_t i)
{
	(void)terms;
	return per_token(&f->requests[i]);
}

typedef double time_of(const struct fit *f, const double terms[FIT_TERMS], size_t i);

static void quantile_pair(struct fit *f, const double terms[FIT_TERMS], time_of *of, double out[2])
{
	size_t n = 0;
	for (size_t i = 0; i < f->n; i++) {
		double v = of(f, terms, i);
		if (!isnan(v))
			f->sorted[n++] = v;
	}
	out[0] = quantile_of(f->sorted, n, 0.5);
	out[1] = quantile_of(f->sorted, n, 0.99);
}

/* The engine was played. */
static void quantiles_fill(struct fit *f, const double terms[FIT_TERMS], struct fit_times *out)
{
	quantile_pair(f, terms, ttft_guessed, out->ttft_model);
	quantile_pair(f, terms, ttft_measured, out->ttft_measured);
	quantile_pair(f, terms, itl_guessed, out->itl_model);
	quantile_pair(f, terms, itl_measured, out->itl_measured);
}

/* ---- unknown terms ---- */

/* Return the term with the largest error of those that take time and that the requests do not tell; FIT_TERMS: there is none. The
 * prompt token and the step are not held: every engine has them. */
static enum fit_term_id least_told(const struct fit *f, const struct fit_result *r)
{
	enum fit_term_id least = FIT_TERMS;
	for (enum fit_term_id t = 0; t < FIT_TERMS; t++)
		if (t != FIT_TOKEN && t != FIT_STEP && !f->held[t] && r->terms[t].error >= ERROR_MOST &&
			r->terms[t].share >= SHARE_LEAST &&
			(least == FIT_TERMS || r->terms[t].error > r->terms[least].error))
			least = t;
	return least;
}

static void known_fill(const struct fit *f, struct fit_result *out)
{
	for (int t = 0; t < FIT_TERMS; t++)
		out->terms[t].known =
			!f->held[t] && out->terms[t].error < ERROR_MOST && out->terms[t].share >= SHARE_LEAST;
}

/* Find the terms that are not held. */
static void terms_find(struct fit *f, struct fit_result *out)
{
	struct normal normal = {0};
	double logs[FIT_TERMS], terms[FIT_TERMS];
	first_guess(f, logs);
	terms_improve(f, logs, &normal);
	terms_of(f, logs, terms);
	errors_fill(f, &normal, out);
	for (int t = 0; t < FIT_TERMS; t++)
		out->terms[t].ns = terms[t];
	out->first_error = distance_median(f, 0, 2);
	out->decode_error = distance_median(f, 1, 2);
	shares_fill(f, terms, out);
	quantiles_fill(f, terms, &out->times);
	known_fill(f, out);
}

/* Fit with the terms overlapping or not, and return the distance. A term that the requests do not tell is held, and the others are
 * found again: its time belongs to them. */
static double variant_fit(struct fit *f, bool overlaps, struct fit_result *out)
{
	f->overlaps = overlaps;
	memset(f->held, 0, sizeof f->held);
	*out = (struct fit_result){.overlaps = overlaps};
	terms_find(f, out);
	for (enum fit_term_id t = least_told(f, out); t != FIT_TERMS; t = least_told(f, out)) {
		f->held[t] = true;
		terms_find(f, out);
	}
	return cost_sum(f, f->residuals, 0.1);
}

static void fit_free(struct fit *f)
{
	free(f->mets);
	free(f->meetings);
	free(f->prompts);
	free(f->residuals);
	free(f->tried);
	free(f->jacobian);
	free(f->sorted);
	free(f->guesses);
}

static bool fit_open(struct fit *f)
{
	size_t n = f->n;
	f->mets = calloc(n, sizeof *f->mets);
	f->meetings = calloc(n * n < MEETINGS ? n * n : MEETINGS, sizeof *f->meetings);
	f->prompts = calloc(n, sizeof *f->prompts);
	f->residuals = calloc(2 * n, sizeof *f->residuals);
	f->tried = calloc(2 * n, sizeof *f->tried);
	f->jacobian = calloc(2 * n * FIT_TERMS, sizeof *f->jacobian);
	f->sorted = calloc(2 * n, sizeof *f->sorted);
	f->guesses = calloc(n, sizeof *f->guesses);
	if (f->mets == NULL || f->meetings == NULL || f->prompts == NULL || f->residuals == NULL ||
		f->tried == NULL || f->jacobian == NULL || f->sorted == NULL || f->guesses == NULL)
		return false;
	begins_fill(f);
	for (size_t i = 0; i < n; i++)
		met_fill(f, i);
	return true;
}

CGN_RC fit_run(const struct fit_request *requests, size_t n, const struct fit_cfg *cfg,
	struct fit_result *out, struct cgn_err *err)
{
	struct fit f = {.requests = requests, .n = n, .cfg = *cfg};
	struct fit_result apart, beside;
	if (n < FIT_LEAST || n > FIT_MOST)
		return CGN_FAIL(err, INVALID, "%zu requests: a fit takes %d to %d", n, FIT_LEAST, FIT_MOST);
	f.no_memory = !fit_open(&f);
	if (!f.no_memory) {
		double distance = variant_fit(&f, false, &apart);
		*out = variant_fit(&f, true, &beside) < distance ? beside : apart;
	}
	fit_free(&f);
	return f.no_memory ? CGN_FAIL(err, NO_MEMORY, "no memory to fit %zu requests", n) : CGN_OK;
}

CGN_RC fit_play(const struct fit_request *requests, size_t n, const struct fit_cfg *cfg,
	const struct fit_result *terms, struct fit_times *out, struct cgn_err *err)
{
	struct fit f = {.requests = requests, .n = n, .cfg = *cfg, .overlaps = terms->overlaps};
	double ns[FIT_TERMS];
	if (n < FIT_LEAST || n > FIT_MOST)
		return CGN_FAIL(err, INVALID, "%zu requests: a fit takes %d to %d", n, FIT_LEAST, FIT_MOST);
	for (int t = 0; t < FIT_TERMS; t++)
		ns[t] = fmax(LEAST_NS, terms->terms[t].ns);
	f.no_memory = !fit_open(&f);
	if (!f.no_memory) {
		model_play(&f, ns);
		quantiles_fill(&f, ns, out);
	}
	fit_free(&f);
	return f.no_memory ? CGN_FAIL(err, NO_MEMORY, "no memory to play %zu requests", n) : CGN_OK;
}
