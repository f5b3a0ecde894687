/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/engine/prom.h"

#include <math.h>
#include <stdlib.h>

/* Longest number that is read. A double needs at most 24 bytes. */
#define NUMBER_BYTES 64

static bool is_name_start(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':';
}

static bool is_name(char c)
{
	return is_name_start(c) || (c >= '0' && c <= '9');
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static void skip_bytes(struct cgn_str *s, size_t n)
{
	s->p += n;
	s->n -= n;
}

static void skip_blanks(struct cgn_str *s)
{
	while (s->n > 0 && is_blank(s->p[0]))
		skip_bytes(s, 1);
}

static struct cgn_str take_name(struct cgn_str *s)
{
	size_t n = 0;
	if (s->n > 0 && is_name_start(s->p[0]))
		while (n < s->n && is_name(s->p[n]))
			n++;
	struct cgn_str name = {s->p, n};
	skip_bytes(s, n);
	return name;
}

/* Return the length of a quoted string with its quotes; 0 when the string does not end. A backslash escapes
 * the next byte. */
static size_t quoted_len(struct cgn_str s)
{
	if (s.n == 0 || s.p[0] != '"')
		return 0;
	for (size_t i = 1; i < s.n; i++) {
		if (s.p[i] == '\\')
			i++;
		else if (s.p[i] == '"')
			return i + 1;
	}
	return 0;
}

/* Read a `name="value"` pair, and the comma or blanks after it. */
static bool take_label(struct cgn_str *s, struct cgn_str *name, struct cgn_str *value)
{
	skip_blanks(s);
	*name = take_name(s);
	skip_blanks(s);
	if (name->n == 0 || s->n == 0 || s->p[0] != '=')
		return false;
	skip_bytes(s, 1);
	skip_blanks(s);
	size_t n = quoted_len(*s);
	if (n == 0)
		return false;
	*value = (struct cgn_str){s->p + 1, n - 2};
	skip_bytes(s, n);
	skip_blanks(s);
	if (s->n > 0 && s->p[0] == ',')
		skip_bytes(s, 1);
	return true;
}

/* Read `{...}`; braces inside label values do not count. */
static bool take_labels(struct cgn_str *s, struct cgn_str *labels)
{
	skip_bytes(s, 1);
	const char *from = s->p;
	struct cgn_str name, value;
	for (skip_blanks(s); s->n > 0 && s->p[0] != '}'; skip_blanks(s))
		if (!take_label(s, &name, &value))
			return false;
	if (s->n == 0)
		return false;
	*labels = (struct cgn_str){from, (size_t)(s->p - from)};
	skip_bytes(s, 1);
	return true;
}

static bool take_number(struct cgn_str *s, double *out)
{
	char text[NUMBER_BYTES];
	size_t n = 0;
	while (n < s->n && !is_blank(s->p[n]))
		n++;
	if (n == 0 || !cgn_str_copyz(text, sizeof text, (struct cgn_str){s->p, n}))
		return false;
	char *end = NULL;
	*out = strtod(text, &end);
	skip_bytes(s, n);
	return end == text + n;
}

/* A time stamp or an exemplar after the value is ignored. */
bool prom_sample_of(struct cgn_str line, struct prom_sample *out)
{
	*out = (struct prom_sample){.name = take_name(&line)};
	if (out->name.n == 0)
		return false;
	skip_blanks(&line);
	if (line.n > 0 && line.p[0] == '{' && !take_labels(&line, &out->labels))
		return false;
	skip_blanks(&line);
	const char *from = line.p;
	bool good = take_number(&line, &out->value);
	out->number = (struct cgn_str){from, (size_t)(line.p - from)};
	return good;
}

bool prom_next(struct prom_reader *r, struct prom_sample *out)
{
	while (r->rest.p != NULL) {
		struct cgn_str line = cgn_str_split(&r->rest, '\n');
		if (line.n > 0 && line.p[line.n - 1] == '\r')
			line.n--;
		line = cgn_str_trim(line);
		if (line.n == 0 || line.p[0] == '#')
			continue;
		if (prom_sample_of(line, out))
			return true;
		r->skipped++;
	}
	return false;
}

bool prom_next_label(struct cgn_str *rest, struct cgn_str *name, struct cgn_str *value)
{
	if (rest->n == 0 || !take_label(rest, name, value))
		return false;
	skip_blanks(rest);
	return true;
}

bool prom_is_name(struct cgn_str s)
{
	struct cgn_str rest = s;
	return s.n > 0 && take_name(&rest).n == s.n;
}

bool prom_label(const struct prom_sample *s, const char *name, struct cgn_str *out)
{
	struct cgn_str rest = s->labels, key, value;
	while (prom_next_label(&rest, &key, &value)) {
		if (cgn_str_is(key, name)) {
			*out = value;
			return true;
		}
	}
	return false;
}

static bool samples_fold(struct cgn_str text, const char *name, bool want_max, double *out)
{
	struct prom_reader r = prom_reader_of(text);
	struct prom_sample s;
	double total = 0;
	bool seen = false;
	while (prom_next(&r, &s)) {
		if (!cgn_str_is(s.name, name) || !isfinite(s.value))
			continue;
		if (!seen || (want_max && s.value > total))
			total = s.value;
		else if (!want_max)
			total += s.value;
		seen = true;
	}
	if (seen)
		*out = total;
	return seen;
}

bool prom_sum(struct cgn_str text, const char *name, double *out)
{
	return samples_fold(text, name, false, out);
}

bool prom_max(struct cgn_str text, const char *name, double *out)
{
	return samples_fold(text, name, true, out);
}
