/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json/json_priv.h"

static void comma_put(struct json_out *o)
{
	if (o->comma)
		cgn_buf_char(o->b, ',');
	o->comma = true;
}

void json_open(struct json_out *o, char bracket)
{
	CGN_MUST(o->depth < JSON_MAX_DEPTH);
	comma_put(o);
	cgn_buf_char(o->b, bracket);
	o->depth++;
	o->comma = false;
}

void json_close(struct json_out *o, char bracket)
{
	CGN_MUST(o->depth > 0);
	cgn_buf_char(o->b, bracket);
	o->depth--;
	o->comma = true;
}

static void put_escape(struct cgn_buf *b, char c)
{
	static const char letters[] = "btn\0fr"; /* From 0x08 on; 0x0b has no letter. */
	unsigned char u = (unsigned char)c;
	if (c == '"' || c == '\\')
		cgn_buf_fmt(b, "\\%c", c);
	else if (u >= 0x08 && u <= 0x0d && letters[u - 0x08] != '\0')
		cgn_buf_fmt(b, "\\%c", letters[u - 0x08]);
	else
		cgn_buf_fmt(b, "\\u%04x", u);
}

/* |s| has no special byte. */
static void put_utf8(struct cgn_buf *b, struct cgn_str s)
{
	for (;;) {
		size_t good = cgn_utf8_prefix(s.p, s.n);
		cgn_buf_add(b, s.p, good);
		if (good == s.n)
			return;
		cgn_buf_putz(b, "\xef\xbf\xbd");
		s.p += good + 1;
		s.n -= good + 1;
	}
}

static void put_quoted(struct cgn_buf *b, struct cgn_str s)
{
	const char *p = s.p, *end = p + s.n;
	bool wide = false;
	if (json_plain_end(p, end, &wide) == end && !wide) {
		char *to = cgn_buf_room(b, s.n + 2);
		if (to == NULL)
			return;
		*to = to[s.n + 1] = '"';
		memcpy(to + 1, p, s.n);
		cgn_buf_grew(b, s.n + 2);
		return;
	}
	cgn_buf_char(b, '"');
	while (p < end) {
		wide = false;
		const char *stop = json_plain_end(p, end, &wide);
		struct cgn_str run = {p, (size_t)(stop - p)};
		if (wide)
			put_utf8(b, run);
		else
			cgn_buf_str(b, run);
		if (stop < end)
			put_escape(b, *stop++);
		p = stop;
	}
	cgn_buf_char(b, '"');
}

void json_key(struct json_out *o, const char *key)
{
	comma_put(o);
	put_quoted(o->b, cgn_str_of(key));
	cgn_buf_char(o->b, ':');
	o->comma = false;
}

void json_put_str(struct json_out *o, struct cgn_str s)
{
	comma_put(o);
	put_quoted(o->b, s.p != NULL ? s : CGN_STR(""));
}

void json_put_z(struct json_out *o, const char *z)
{
	json_put_str(o, cgn_str_of(z));
}

void json_put_u64(struct json_out *o, uint64_t v)
{
	comma_put(o);
	cgn_buf_u64(o->b, v);
}

void json_put_i64(struct json_out *o, int64_t v)
{
	comma_put(o);
	if (v < 0)
		cgn_buf_char(o->b, '-');
	cgn_buf_u64(o->b, v < 0 ? -(uint64_t)v : (uint64_t)v);
}

static bool reads_back(const char *text, double v)
{
	double again = strtod(text, NULL);
	return !(again < v) && !(again > v);
}

void json_put_f64(struct json_out *o, double v)
{
	char text[32];
	if (!isfinite(v)) {
		json_put_null(o);
		return;
	}
	for (int digits = 15; digits <= 17; digits++) {
		(void)snprintf(text, sizeof text, "%.*g", digits, v);
		if (reads_back(text, v))
			break;
	}
	comma_put(o);
	cgn_buf_putz(o->b, text);
}

void json_put_bool(struct json_out *o, bool v)
{
	comma_put(o);
	cgn_buf_putz(o->b, v ? "true" : "false");
}

void json_put_null(struct json_out *o)
{
	comma_put(o);
	cgn_buf_putz(o->b, "null");
}

void json_put_raw(struct json_out *o, struct cgn_str json)
{
	comma_put(o);
	cgn_buf_str(o->b, json);
}

void json_put_flat(struct json_out *o, struct cgn_str json)
{
	size_t from = o->b->n;
	json_put_raw(o, json);
	for (size_t i = from; !o->b->bad && i < o->b->n; i++)
		if (o->b->p[i] == '\n' || o->b->p[i] == '\r')
			o->b->p[i] = ' ';
}

void json_key_str(struct json_out *o, const char *key, struct cgn_str s)
{
	json_key(o, key);
	json_put_str(o, s);
}

void json_key_z(struct json_out *o, const char *key, const char *z)
{
	json_key(o, key);
	json_put_z(o, z);
}

void json_key_u64(struct json_out *o, const char *key, uint64_t v)
{
	json_key(o, key);
	json_put_u64(o, v);
}

void json_key_f64(struct json_out *o, const char *key, double v)
{
	json_key(o, key);
	json_put_f64(o, v);
}

void json_key_bool(struct json_out *o, const char *key, bool v)
{
	json_key(o, key);
	json_put_bool(o, v);
}

void json_key_open(struct json_out *o, const char *key, char bracket)
{
	json_key(o, key);
	json_open(o, bracket);
}
