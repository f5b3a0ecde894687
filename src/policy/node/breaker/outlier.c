/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/breaker/outlier.h"

#include <math.h>
#include <stdlib.h>

#define FIRST_LEAST   7 /* log2 of the tokens at which the second class begins. */
#define SCALE         256.0
#define SPREAD        1.4826
#define ADD(field, v) atomic_fetch_add_explicit(&(field), (v), memory_order_relaxed)
#define GET(field)    atomic_load_explicit(&(field), memory_order_relaxed)

static unsigned class_of(uint64_t v, unsigned least, unsigned classes)
{
	unsigned c = 0;
	for (v >>= least; v > 0 && c < classes - 1; v >>= 1)
		c++;
	return c;
}

static uint32_t log_of(cgn_nsec took, cgn_nsec least)
{
	return (uint32_t)(log2((double)((took > least ? took : least) / CGN_USEC)) * SCALE + 0.5);
}

void outlier_add_end(struct outlier_tally *t, bool failed)
{
	ADD(t->ended, 1);
	if (failed)
		ADD(t->failed, 1);
}

void outlier_add_first(struct outlier_tally *t, cgn_nsec took, uint64_t tokens)
{
	unsigned c = class_of(tokens, FIRST_LEAST, OUTLIER_FIRST);
	ADD(t->first[c].n, 1);
	ADD(t->first[c].sum, log_of(took, OUTLIER_FIRST_LEAST));
}

void outlier_add_token(struct outlier_tally *t, cgn_nsec took, uint32_t decoding)
{
	unsigned c = class_of(decoding, 1, OUTLIER_TOKEN);
	ADD(t->token[c].n, 1);
	ADD(t->token[c].sum, log_of(took, OUTLIER_TOKEN_LEAST));
}

void outlier_read(const struct outlier_tally *t, struct outlier_totals *out)
{
	out->ended = GET(t->ended);
	out->failed = GET(t->failed);
	for (size_t i = 0; i < OUTLIER_FIRST; i++)
		out->first[i] = (struct outlier_class){GET(t->first[i].n), GET(t->first[i].sum)};
	for (size_t i = 0; i < OUTLIER_TOKEN; i++)
		out->token[i] = (struct outlier_class){GET(t->token[i].n), GET(t->token[i].sum)};
}

/* ---- the window ---- */

void outlier_window_reset(struct outlier_window *w, const struct outlier_totals *now)
{
	for (size_t i = 0; i < CGN_COUNT(w->at); i++)
		w->at[i] = *now;
}

void outlier_window_turn(struct outlier_window *w, const struct outlier_totals *now)
{
	w->at[w->oldest] = *now;
	w->oldest = (w->oldest + 1) % CGN_COUNT(w->at);
}

static struct outlier_class class_since(struct outlier_class now, struct outlier_class then)
{
	return (struct outlier_class){now.n - then.n, now.sum - then.sum};
}

void outlier_window_get(const struct outlier_window *w, const struct outlier_totals *now,
	struct outlier_totals *out)
{
	const struct outlier_totals *then = &w->at[w->oldest];
	out->ended = now->ended - then->ended;
	out->failed = now->failed - then->failed;
	for (size_t i = 0; i < OUTLIER_FIRST; i++)
		out->first[i] = class_since(now->first[i], then->first[i]);
	for (size_t i = 0; i < OUTLIER_TOKEN; i++)
		out->token[i] = class_since(now->token[i], then->token[i]);
}

/* ---- the judgement ---- */

static double share_of(const struct outlier_totals *t)
{
	return t->ended > 0 ? (double)t->failed / (double)t->ended : 0;
}

bool outlier_fails(const struct outlier_totals *recent, double share)
{
	return share > 0 && recent->ended >= OUTLIER_REQUESTS && share_of(recent) >= share;
}

static int double_order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median_of(double *v, size_t n)
{
	qsort(v, n, sizeof *v, double_order);
	return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* The distribution of one measure over all peers: median and spread. */
struct norm {
	double middle, spread;
	size_t n;
};

/* Compute the score of a peer by one measure; false: the peer had too few requests. */
typedef bool (*score_fn)(const struct outlier_peer *p, double *out);

static struct norm norm_of(const struct outlier_peer *peers, size_t n, score_fn score, double *scratch)
{
	struct norm m = {0};
	for (size_t i = 0; i < n; i++)
		m.n += score(&peers[i], &scratch[m.n]);
	if (m.n < OUTLIER_NODES)
		return m;
	m.middle = median_of(scratch, m.n);
	for (size_t i = 0; i < m.n; i++)
		scratch[i] = fabs(scratch[i] - m.middle);
	m.spread = SPREAD * median_of(scratch, m.n);
	return m;
}

static void judge_by(struct outlier_peer *peers, size_t n, score_fn score, double bound,
	enum breaker_reason why, double *scratch)
{
	struct norm m = norm_of(peers, n, score, scratch);
	double v, limit = OUTLIER_SPREADS * m.spread > bound ? OUTLIER_SPREADS * m.spread : bound;
	for (size_t i = 0; m.n >= OUTLIER_NODES && i < n; i++) {
		if (peers[i].out || !score(&peers[i], &v) || v - m.middle <= limit)
			continue;
		if ((v - m.middle) / limit <= peers[i].excess)
			continue;
		peers[i].excess = (v - m.middle) / limit;
		peers[i].verdict = why;
	}
}

static bool score_failures(const struct outlier_peer *p, double *out)
{
	if (p->recent.ended < OUTLIER_REQUESTS)
		return false;
	*out = share_of(&p->recent);
	return true;
}

/* Replace each sum: the distance of the peer's mean in the class from the median of the class, times the
 * requests. */
static void classes_centre(struct outlier_peer *peers, size_t n, size_t offset, double *scratch)
{
	size_t m = 0;
	for (size_t i = 0; i < n; i++) {
		const struct outlier_class *c = (const void *)((const char *)&peers[i] + offset);
		if (c->n > 0)
			scratch[m++] = (double)c->sum / c->n;
	}
	double middle = m >= OUTLIER_NODES ? median_of(scratch, m) : 0;
	for (size_t i = 0; i < n; i++) {
		struct outlier_class *c = (void *)((char *)&peers[i] + offset);
		if (m < OUTLIER_NODES)
			c->n = c->sum = 0; /* Too few peers to compare with. */
		else
			c->sum = (uint32_t)(int32_t)lrint((double)c->sum - middle * c->n);
	}
}

static bool score_classes(const struct outlier_class *c, size_t n, double *out)
{
	double sum = 0;
	uint64_t requests = 0;
	for (size_t i = 0; i < n; i++) {
		sum += (double)(int32_t)c[i].sum;
		requests += c[i].n;
	}
	if (requests < OUTLIER_REQUESTS)
		return false;
	*out = sum / SCALE / (double)requests;
	return true;
}

static bool score_first(const struct outlier_peer *p, double *out)
{
	return score_classes(p->recent.first, OUTLIER_FIRST, out);
}

static bool score_token(const struct outlier_peer *p, double *out)
{
	return score_classes(p->recent.token, OUTLIER_TOKEN, out);
}

static size_t verdicts_allowed(const struct outlier_peer *peers, size_t n, double share)
{
	size_t out = 0, most = (size_t)((double)n * share);
	for (size_t i = 0; i < n; i++)
		out += peers[i].out;
	if (most < 1)
		most = 1;
	if (most > n - 1)
		most = n - 1;
	return most > out ? most - out : 0;
}

/* Return the worst peer with a verdict that is not kept yet, or |n|. |kept|: by peer. */
static size_t worst_of(const struct outlier_peer *peers, size_t n, const double *kept)
{
	size_t worst = n;
	for (size_t i = 0; i < n; i++)
		if (peers[i].verdict != BREAKER_FOR_NOTHING && !(kept[i] > 0) &&
			(worst == n || peers[i].excess > peers[worst].excess))
			worst = i;
	return worst;
}

static void keep_worst(struct outlier_peer *peers, size_t n, size_t most, double *kept)
{
	for (size_t i = 0; i < n; i++)
		kept[i] = 0;
	for (size_t w; most > 0 && (w = worst_of(peers, n, kept)) < n; most--)
		kept[w] = 1;
	for (size_t i = 0; i < n; i++)
		if (!(kept[i] > 0))
			peers[i].verdict = BREAKER_FOR_NOTHING;
}

void outlier_judge(struct outlier_peer *peers, size_t n, double share, double *scratch)
{
	for (size_t i = 0; i < n; i++) {
		peers[i].verdict = BREAKER_FOR_NOTHING;
		peers[i].excess = 0;
	}
	if (n < OUTLIER_NODES)
		return;
	for (size_t c = 0; c < OUTLIER_FIRST; c++)
		classes_centre(peers, n,
			offsetof(struct outlier_peer, recent.first[0]) + c * sizeof(struct outlier_class),
			scratch);
	for (size_t c = 0; c < OUTLIER_TOKEN; c++)
		classes_centre(peers, n,
			offsetof(struct outlier_peer, recent.token[0]) + c * sizeof(struct outlier_class),
			scratch);
	judge_by(peers, n, score_failures, OUTLIER_SHARE, BREAKER_FOR_ERRORS, scratch);
	judge_by(peers, n, score_first, OUTLIER_SLOWER, BREAKER_FOR_FIRST, scratch);
	judge_by(peers, n, score_token, OUTLIER_SLOWER, BREAKER_FOR_TOKENS, scratch);
	keep_worst(peers, n, verdicts_allowed(peers, n, share), scratch);
}
