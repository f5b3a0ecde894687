/* SPDX-License-Identifier: Apache-2.0 */
#include "base/resp/resp.h"

#define LINE_MAX_BYTES 4096 /* Longest text or error; a number is shorter. */

/* Take the line up to CRLF, and the CRLF. */
static enum resp_outcome line_take(struct cgn_str *rest, struct cgn_str *out, const char **why)
{
	size_t look = rest->n < LINE_MAX_BYTES ? rest->n : LINE_MAX_BYTES;
	const char *cr = memchr(rest->p, '\r', look);
	if (cr == NULL || cr + 1 == rest->p + rest->n) {
		*why = "a line without an end";
		return rest->n < LINE_MAX_BYTES ? RESP_MORE : RESP_BAD;
	}
	if (cr[1] != '\n') {
		*why = "a carriage return inside a line";
		return RESP_BAD;
	}
	*out = (struct cgn_str){rest->p, (size_t)(cr - rest->p)};
	*rest = (struct cgn_str){cr + 2, rest->n - out->n - 2};
	return RESP_GOT;
}

static bool number_of(struct cgn_str s, int64_t *out)
{
	bool minus = s.n > 0 && s.p[0] == '-';
	uint64_t v;
	if (minus || (s.n > 0 && s.p[0] == '+'))
		s = (struct cgn_str){s.p + 1, s.n - 1};
	if (!cgn_str_u64(s, &v) || v > (uint64_t)INT64_MAX + minus)
		return false;
	*out = minus ? (int64_t)(0 - v) : (int64_t)v;
	return true;
}

static enum resp_outcome bulk_take(struct cgn_str *rest, struct resp_value *v, const char **why)
{
	size_t n = v->n;
	if (rest->n < n + 2)
		return RESP_MORE;
	if (rest->p[n] != '\r' || rest->p[n + 1] != '\n') {
		*why = "a bulk that does not end where it said";
		return RESP_BAD;
	}
	v->text = (struct cgn_str){rest->p, n};
	*rest = (struct cgn_str){rest->p + n + 2, rest->n - n - 2};
	return RESP_GOT;
}

/* Check the number in the head of a bulk string or an array. */
static enum resp_outcome count_check(char kind, struct resp_value *v, const char **why)
{
	v->type = v->number < 0 ? RESP_NIL : kind == '$' ? RESP_BULK : RESP_ARRAY;
	if (v->number < -1 || (kind == '*' && v->number > (int64_t)RESP_MAX_ELEMENTS)) {
		*why = "a count that cannot be";
		return RESP_BAD;
	}
	if (v->type == RESP_BULK && v->number > (int64_t)RESP_MAX_BULK) {
		*why = "a bulk that is too long";
		return RESP_BAD;
	}
	v->n = v->number > 0 ? (size_t)v->number : 0;
	return RESP_GOT;
}

enum resp_outcome resp_take_head(struct cgn_str *rest, struct resp_value *out, const char **why)
{
	struct cgn_str at = *rest, line;
	struct resp_value v = {.type = RESP_TEXT};
	*why = "";
	if (at.n == 0)
		return RESP_MORE;
	char kind = at.p[0];
	if (memchr("+-:$*", kind, 5) == NULL) {
		*why = "a value of no known type";
		return RESP_BAD;
	}
	at = (struct cgn_str){at.p + 1, at.n - 1};
	enum resp_outcome o = line_take(&at, &line, why);
	if (o != RESP_GOT)
		return o;
	if (kind == '+' || kind == '-') {
		v.type = kind == '+' ? RESP_TEXT : RESP_ERROR;
		v.text = line;
	} else if (!number_of(line, &v.number)) {
		*why = "a number that is none";
		return RESP_BAD;
	} else {
		v.type = RESP_NUMBER;
	}
	if (kind == '$' || kind == '*')
		o = count_check(kind, &v, why);
	if (o != RESP_GOT)
		return o;
	*rest = at;
	*out = v;
	return RESP_GOT;
}

enum resp_outcome resp_take(struct cgn_str *rest, struct resp_value *out, const char **why)
{
	struct cgn_str at = *rest;
	struct resp_value v;
	enum resp_outcome o = resp_take_head(&at, &v, why);
	if (o == RESP_GOT && v.type == RESP_BULK)
		o = bulk_take(&at, &v, why);
	if (o != RESP_GOT)
		return o;
	*rest = at;
	*out = v;
	return RESP_GOT;
}

enum resp_outcome resp_whole(struct cgn_str bytes, size_t *out, const char **why)
{
	struct cgn_str rest = bytes;
	struct resp_value v;
	for (size_t due = 1; due > 0; due--) {
		enum resp_outcome o = resp_take(&rest, &v, why);
		if (o != RESP_GOT)
			return o;
		due += v.type == RESP_ARRAY ? v.n : 0;
		if (due > RESP_MAX_ELEMENTS) {
			*why = "more elements than can be";
			return RESP_BAD;
		}
	}
	*out = bytes.n - rest.n;
	return RESP_GOT;
}

void resp_put_array(struct cgn_buf *b, size_t n)
{
	cgn_buf_char(b, '*');
	cgn_buf_u64(b, n);
	cgn_buf_putz(b, "\r\n");
}

void resp_put_bulk(struct cgn_buf *b, struct cgn_str s)
{
	cgn_buf_char(b, '$');
	cgn_buf_u64(b, s.n);
	cgn_buf_putz(b, "\r\n");
	cgn_buf_str(b, s);
	cgn_buf_putz(b, "\r\n");
}
