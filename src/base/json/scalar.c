/* SPDX-License-Identifier: Apache-2.0 */
/* json scalars: strings without their escapes, numbers as C numbers. */
#include <math.h>
#include <stdlib.h>

#include "base/codec/codec.h"
#include "base/json/json_priv.h"

int32_t json_hex_quad(const char *p, const char *end)
{
	int32_t code = 0;
	if (end - p < 5)
		return -1;
	for (int i = 1; i <= 4; i++) {
		int digit = hex_digit(p[i]);
		if (digit < 0)
			return -1;
		code = code << 4 | digit;
	}
	return code;
}

/* Return the code point of the \uXXXX whose 'u' is at |*p|, a pair of surrogates as one; moves |*p| behind it. */
static uint32_t escape_code_point(const char **p)
{
	uint32_t code = (uint32_t)json_hex_quad(*p, *p + 5);
	*p += 5;
	if (code < 0xd800 || code > 0xdbff)
		return code;
	uint32_t low = (uint32_t)json_hex_quad(*p + 1, *p + 6);
	*p += 6;
	return 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
}

/* Decode the escape behind the backslash; |*p| stands behind it. */
static size_t unescape_one(const char **p, char out[4])
{
	char c = **p;
	if (c == 'u')
		return cgn_utf8_write(out, escape_code_point(p));
	(*p)++;
	switch (c) {
	case 'b':
		c = '\b';
		break;
	case 'f':
		c = '\f';
		break;
	case 'n':
		c = '\n';
		break;
	case 'r':
		c = '\r';
		break;
	case 't':
		c = '\t';
		break;
	default: /* A quote, a slash or a backslash stands for itself. */
		break;
	}
	out[0] = c;
	return 1;
}

/* Collects short runs and escapes, so that |take| is called once for a few hundred bytes instead of once for
 * each line of code in a prompt. */
struct gather {
	json_piece_fn take;
	void *arg;
	size_t n;
	char bytes[256];
};

static void gather_flush(struct gather *g)
{
	if (g->n > 0)
		g->take(g->arg, (struct cgn_str){g->bytes, g->n});
	g->n = 0;
}

static void gather_run(struct gather *g, struct cgn_str run)
{
	if (run.n > sizeof g->bytes - g->n)
		gather_flush(g);
	if (run.n > sizeof g->bytes / 2) {
		gather_flush(g);
		g->take(g->arg, run);
	} else {
		memcpy(g->bytes + g->n, run.p, run.n);
		g->n += run.n;
	}
}

static void gather_escape(struct gather *g, const char **p)
{
	if (sizeof g->bytes - g->n < 4)
		gather_flush(g);
	g->n += unescape_one(p, g->bytes + g->n);
}

void json_str_pieces(struct json_val v, json_piece_fn take, void *arg)
{
	CGN_MUST(v.type == JSON_STRING);
	const char *p = v.raw.p + 1, *end = v.raw.p + v.raw.n - 1;
	struct gather g = {.take = take, .arg = arg, .n = 0};
	while (p < end) {
		const char *slash = memchr(p, '\\', (size_t)(end - p));
		const char *stop = slash != NULL ? slash : end;
		gather_run(&g, (struct cgn_str){p, (size_t)(stop - p)});
		for (p = stop; p < end && *p == '\\';) {
			p++;
			gather_escape(&g, &p);
		}
	}
	gather_flush(&g);
}

static void piece_to_buf(void *arg, struct cgn_str piece)
{
	cgn_buf_str(arg, piece);
}

void json_str_to(struct json_val v, struct cgn_buf *b)
{
	json_str_pieces(v, piece_to_buf, b);
}

struct cgn_str json_str(struct json_val v, struct cgn_arena *a)
{
	CGN_MUST(v.type == JSON_STRING);
	struct cgn_str inside = {v.raw.p + 1, v.raw.n - 2};
	if (inside.n == 0 || memchr(inside.p, '\\', inside.n) == NULL)
		return inside;
	/* An escape is never shorter than the bytes it stands for. */
	char *room = cgn_arena_get(a, inside.n);
	if (room == NULL)
		return (struct cgn_str){NULL, 0};
	struct cgn_buf b = cgn_buf_over(room, inside.n);
	json_str_to(v, &b);
	return cgn_buf_view(&b);
}

bool json_bool(struct json_val v, bool fallback)
{
	return v.type == JSON_BOOL ? v.raw.p[0] == 't' : fallback;
}

/* The parts of a number, borrowed. */
struct number {
	struct cgn_str whole, fraction;
	int64_t exponent;
	bool negative;
};

/* Far outside of any representable number, and small enough that adding digits does not overflow. */
#define EXPONENT_MAX 100000

static struct cgn_str take_digits(struct cgn_str *rest)
{
	struct cgn_str digits = {rest->p, 0};
	while (digits.n < rest->n && json_is_digit(rest->p[digits.n]))
		digits.n++;
	rest->p += digits.n;
	rest->n -= digits.n;
	return digits;
}

static bool take_byte(struct cgn_str *rest, char c)
{
	if (rest->n == 0 || (rest->p[0] | 0x20) != (c | 0x20))
		return false;
	rest->p++;
	rest->n--;
	return true;
}

static int64_t exponent_value(struct cgn_str rest)
{
	bool negative = take_byte(&rest, '-');
	if (!negative)
		(void)take_byte(&rest, '+');
	int64_t e = 0;
	for (size_t i = 0; i < rest.n && e < EXPONENT_MAX; i++)
		e = e * 10 + (rest.p[i] - '0');
	return negative ? -e : e;
}

static struct number split_number(struct cgn_str raw)
{
	struct number num = {.negative = take_byte(&raw, '-')};
	num.whole = take_digits(&raw);
	if (take_byte(&raw, '.'))
		num.fraction = take_digits(&raw);
	if (take_byte(&raw, 'e'))
		num.exponent = exponent_value(raw);
	return num;
}

static uint64_t digit_at(const struct number *num, uint64_t i)
{
	if (i < num->whole.n)
		return (uint64_t)(num->whole.p[i] - '0');
	i -= num->whole.n;
	return i < num->fraction.n ? (uint64_t)(num->fraction.p[i] - '0') : 0;
}

/* After applying the exponent, the digits before the point are the value; the digits behind it must be
 * zero. */
bool json_u64(struct json_val v, uint64_t *out)
{
	if (v.type != JSON_NUMBER)
		return false;
	struct number num = split_number(v.raw);
	uint64_t n_digits = num.whole.n + num.fraction.n, value = 0, i = 0;
	int64_t point = (int64_t)num.whole.n + num.exponent;
	for (; (int64_t)i < point && (i < n_digits || value != 0); i++)
		if (__builtin_mul_overflow(value, 10U, &value) ||
			__builtin_add_overflow(value, digit_at(&num, i), &value))
			return false;
	for (; i < n_digits; i++)
		if (digit_at(&num, i) != 0)
			return false;
	if (num.negative && value != 0)
		return false;
	*out = value;
	return true;
}

bool json_f64(struct json_val v, double *out)
{
	char small[64];
	if (v.type != JSON_NUMBER)
		return false;
	bool fits = cgn_str_copyz(small, sizeof small, v.raw);
	char *large = fits ? NULL : cgn_str_dupz(v.raw);
	if (!fits && large == NULL)
		return false;
	double f = strtod(fits ? small : large, NULL);
	free(large);
	if (!isfinite(f))
		return false;
	*out = f;
	return true;
}
