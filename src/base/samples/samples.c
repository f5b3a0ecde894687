/* SPDX-License-Identifier: Apache-2.0 */
#include "base/samples/samples.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/quantile/quantile.h"

void samples_add(struct samples *s, cgn_nsec v)
{
	if (samples_count(s) >= SAMPLES_MAX || s->ns.bad) {
		s->lost++;
		return;
	}
	cgn_buf_add(&s->ns, &v, sizeof v);
	s->sorted = false;
}

size_t samples_count(const struct samples *s)
{
	return s->ns.n / sizeof(uint64_t);
}

static uint64_t sample_at(const struct samples *s, size_t i)
{
	uint64_t v;
	memcpy(&v, s->ns.p + i * sizeof v, sizeof v);
	return v;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x, y;
	memcpy(&x, a, sizeof x);
	memcpy(&y, b, sizeof y);
	return x < y ? -1 : x > y;
}

/* Do one pass of a radix sort by the byte at |shift|. Returns false, with nothing done, when all values have
 * the same byte there. */
static bool by_byte(const uint64_t *from, uint64_t *to, size_t n, unsigned shift)
{
	size_t count[257] = {0};
	for (size_t i = 0; i < n; i++)
		count[(from[i] >> shift & 0xff) + 1]++;
	if (count[(from[0] >> shift & 0xff) + 1] == n)
		return false;
	for (size_t i = 1; i < CGN_COUNT(count); i++)
		count[i] += count[i - 1];
	for (size_t i = 0; i < n; i++)
		to[count[from[i] >> shift & 0xff]++] = from[i];
	return true;
}

/* Radix sort, because qsort takes a second for millions of gaps between tokens. */
static void samples_sort(struct samples *s)
{
	size_t n = samples_count(s);
	uint64_t *other = malloc(n * sizeof *other), *sample_at = (uint64_t *)(void *)s->ns.p, *spare = other;
	if (other == NULL) {
		qsort(s->ns.p, n, sizeof(uint64_t), by_value);
		return;
	}
	for (unsigned shift = 0; shift < 64; shift += 8) {
		if (!by_byte(sample_at, spare, n, shift))
			continue;
		uint64_t *was = sample_at;
		sample_at = spare;
		spare = was;
	}
	if (sample_at == other)
		memcpy(s->ns.p, other, n * sizeof *other);
	free(other);
}

double samples_ms(struct samples *s, double quantile)
{
	size_t n = samples_count(s);
	if (s->lost > 0)
		return (double)NAN;
	if (n == 0)
		return 0;
	if (!s->sorted)
		samples_sort(s);
	s->sorted = true;
	return (double)sample_at(s, quantile_rank(n, quantile) - 1) / 1e6;
}

double samples_us(struct samples *s, double quantile)
{
	return samples_ms(s, quantile) * 1e3;
}

double samples_mean_ms(const struct samples *s)
{
	double sum = 0;
	size_t n = samples_count(s);
	if (s->lost > 0)
		return (double)NAN;
	for (size_t i = 0; i < n; i++)
		sum += (double)sample_at(s, i);
	return n > 0 ? sum / (double)n / 1e6 : 0;
}

void samples_fini(struct samples *s)
{
	cgn_buf_fini(&s->ns);
	*s = (struct samples){0};
}

void samples_json(struct samples *s, struct json_out *o)
{
	static const struct {
		const char *name;
		double quantile;
	} rows[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1}};
	if (samples_count(s) + s->lost == 0) {
		json_put_null(o);
		return;
	}
	json_open(o, '{');
	json_key_u64(o, "count", samples_count(s) + s->lost);
	if (s->lost > 0)
		json_key_u64(o, "lost", s->lost);
	else
		json_key_f64(o, "mean", samples_mean_ms(s));
	for (size_t i = 0; i < CGN_COUNT(rows) && s->lost == 0; i++)
		json_key_f64(o, rows[i].name, samples_ms(s, rows[i].quantile));
	json_close(o, '}');
}
