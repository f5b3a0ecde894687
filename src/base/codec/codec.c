/* SPDX-License-Identifier: Apache-2.0 */
#include "base/codec/codec.h"

#include <string.h>

static const char std_alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
static const char url_alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static void base64_group_put(struct cgn_buf *out, const char *alphabet, const unsigned char *p, size_t n)
{
	char text[4];
	uint32_t bits =
		(uint32_t)p[0] << 16 | (n > 1 ? (uint32_t)p[1] << 8 : 0) | (n > 2 ? (uint32_t)p[2] : 0);
	for (size_t i = 0; i < 4; i++)
		text[i] = alphabet[bits >> (18 - 6 * i) & 63];
	cgn_buf_add(out, text, n + 1);
}

static void alphabet_put(struct cgn_buf *out, const char *alphabet, struct cgn_str bytes)
{
	const unsigned char *p = (const unsigned char *)bytes.p;
	for (size_t left = bytes.n, n; left > 0; left -= n, p += n) {
		n = left < 3 ? left : 3;
		base64_group_put(out, alphabet, p, n);
	}
}

void base64_put(struct cgn_buf *out, struct cgn_str bytes)
{
	alphabet_put(out, std_alphabet, bytes);
	cgn_buf_add(out, "==", (3 - bytes.n % 3) % 3);
}

void base64url_put(struct cgn_buf *out, struct cgn_str bytes)
{
	alphabet_put(out, url_alphabet, bytes);
}

static int base64_digit(char c)
{
	const char *at = c != '\0' ? strchr(std_alphabet, c == '-' ? '+' : c == '_' ? '/' : c) : NULL;
	return at != NULL ? (int)(at - std_alphabet) : -1;
}

bool base64_get(struct cgn_buf *out, struct cgn_str text)
{
	size_t before = out->n, n = text.n;
	uint32_t bits = 0;
	while (n > 0 && text.n - n < 2 && text.p[n - 1] == '=')
		n--;
	bool good = n % 4 != 1 && (n == text.n || text.n % 4 == 0);
	for (size_t i = 0; good && i < n; i++) {
		int digit = base64_digit(text.p[i]);
		good = digit >= 0;
		bits = bits << 6 | (uint32_t)digit;
		if (good && i % 4 != 0)
			cgn_buf_char(out, (char)(bits >> (6 - 2 * (i % 4))));
	}
	good = good && !out->bad;
	if (!good)
		out->n = before;
	return good;
}

void hex_put(struct cgn_buf *out, struct cgn_str bytes)
{
	static const char digits[] = "0123456789abcdef";
	for (size_t i = 0; i < bytes.n; i++) {
		unsigned char byte = (unsigned char)bytes.p[i];
		const char pair[2] = {digits[byte >> 4], digits[byte & 15]};
		cgn_buf_add(out, pair, 2);
	}
}

/* A table, because the branches of a comparison cannot be predicted. */
int hex_digit(char c)
{
	static const int8_t value_plus_one[256] = {
		['0'] = 1,
		['1'] = 2,
		['2'] = 3,
		['3'] = 4,
		['4'] = 5,
		['5'] = 6,
		['6'] = 7,
		['7'] = 8,
		['8'] = 9,
		['9'] = 10,
		['a'] = 11,
		['b'] = 12,
		['c'] = 13,
		['d'] = 14,
		['e'] = 15,
		['f'] = 16,
		['A'] = 11,
		['B'] = 12,
		['C'] = 13,
		['D'] = 14,
		['E'] = 15,
		['F'] = 16,
	};
	return value_plus_one[(unsigned char)c] - 1;
}

bool hex_get(struct cgn_buf *out, struct cgn_str text)
{
	size_t n = text.n / 2;
	if (text.n == 0)
		return true;
	char *to = text.n % 2 == 0 ? cgn_buf_room(out, n) : NULL;
	if (to == NULL)
		return false;
	for (size_t i = 0; i < n; i++) {
		int high = hex_digit(text.p[2 * i]), low = hex_digit(text.p[2 * i + 1]);
		if (high < 0 || low < 0)
			return false;
		to[i] = (char)(high << 4 | low);
	}
	cgn_buf_grew(out, n);
	return true;
}

size_t percent_get(char *to, struct cgn_str text)
{
	size_t n = 0;
	for (size_t i = 0; i < text.n; i++) {
		int high = text.p[i] == '%' && i + 2 < text.n ? hex_digit(text.p[i + 1]) : -1;
		int low = high >= 0 ? hex_digit(text.p[i + 2]) : -1;
		to[n++] = low >= 0 ? (char)(high * 16 + low) : text.p[i];
		i += low >= 0 ? 2 : 0;
	}
	return n;
}

void percent_put(struct cgn_buf *out, struct cgn_str text)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
	for (size_t i = 0; i < text.n; i++) {
		if (memchr(plain, text.p[i], sizeof plain - 1) != NULL)
			cgn_buf_char(out, text.p[i]);
		else
			cgn_buf_fmt(out, "%%%02X", (unsigned)(unsigned char)text.p[i]);
	}
}
