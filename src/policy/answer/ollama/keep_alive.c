/* SPDX-License-Identifier: Apache-2.0 */
/* keep_alive: how long a model is kept after a request, as Ollama writes it: seconds, or one of Go's durations. */
#include <string.h>

#include "policy/answer/ollama/ollama.h"

/* Take a unit of Go's durations off |s|, in ns; 0: there is none. */
static double unit_take(struct cgn_str *s)
{
	static const struct {
		const char *text;
		double ns;
	} units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}};
	for (size_t i = 0; i < CGN_COUNT(units); i++) {
		size_t n = strlen(units[i].text);
		if (!cgn_str_starts(*s, units[i].text))
			continue;
		*s = (struct cgn_str){s->p + n, s->n - n};
		return units[i].ns;
	}
	return 0;
}

/* Take a decimal number off |s|. False: there is none. */
static bool number_take(struct cgn_str *s, double *out)
{
	double value = 0, scale = 1;
	size_t i = 0, digits = 0;
	bool point = false;
	for (; i < s->n && ((s->p[i] >= '0' && s->p[i] <= '9') || (s->p[i] == '.' && !point)); i++) {
		if (s->p[i] == '.') {
			point = true;
			continue;
		}
		digits++;
		scale *= point ? 10 : 1;
		value = value * 10 + (s->p[i] - '0');
	}
	*s = (struct cgn_str){s->p + i, s->n - i};
	*out = value / scale;
	return digits > 0;
}

bool ollama_keep_alive_read(struct cgn_str text, bool quoted, int64_t *out_ms)
{
	bool negative = text.n > 0 && text.p[0] == '-';
	double ns = 0, part;
	struct cgn_str s = negative ? (struct cgn_str){text.p + 1, text.n - 1} : text;
	if (s.n == 0 || s.n > 64)
		return false;
	do {
		if (!number_take(&s, &part))
			return false;
		/* A bare number is seconds, alone. */
		double unit = s.n == 0 && ns <= 0 ? 1e9 : quoted ? unit_take(&s) : 0;
		if (unit <= 0)
			return false;
		ns += part * unit;
	} while (s.n > 0);
	*out_ms = negative && ns > 0 ? -1 : ns > 9e18 ? -1 : (int64_t)(ns / 1e6);
	return true;
}
