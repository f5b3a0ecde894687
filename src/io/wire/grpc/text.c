/* SPDX-License-Identifier: Apache-2.0 */
/* text: values of gRPC header fields: timeouts, percent-encoded messages, status numbers. */
#include "io/wire/grpc/grpc_priv.h"

static const struct {
	char unit;
	cgn_nsec nsec;
} units[] = {
	{'n', 1},
	{'u', CGN_USEC},
	{'m', CGN_MSEC},
	{'S', CGN_SEC},
	{'M', 60 * CGN_SEC},
	{'H', 3600 * CGN_SEC},
};

void grpc_timeout_format(cgn_nsec timeout, char to[GRPC_TIMEOUT_TEXT])
{
	size_t i = 0;
	while (i + 1 < CGN_COUNT(units) && timeout / units[i].nsec >= 99999999)
		i++;
	uint64_t n = timeout / units[i].nsec + (timeout % units[i].nsec != 0);
	(void)snprintf(to, GRPC_TIMEOUT_TEXT, "%llu%c", (unsigned long long)(n < 99999999 ? n : 99999999),
		units[i].unit);
}

bool grpc_timeout_parse(struct cgn_str s, cgn_nsec *out)
{
	uint64_t n;
	if (s.n < 2 || s.n > 9 || !cgn_str_u64((struct cgn_str){s.p, s.n - 1}, &n))
		return false;
	for (size_t i = 0; i < CGN_COUNT(units); i++) {
		if (units[i].unit != s.p[s.n - 1])
			continue;
		if (__builtin_mul_overflow(n, units[i].nsec, out) || *out > GRPC_FOREVER)
			*out = GRPC_FOREVER;
		return true;
	}
	return false;
}

void grpc_message_encode(const char *sentence, struct cgn_buf *out)
{
	for (const char *p = sentence; *p != '\0'; p++) {
		if (*p >= ' ' && *p <= '~' && *p != '%')
			cgn_buf_char(out, *p);
		else
			cgn_buf_fmt(out, "%%%02X", (unsigned)(unsigned char)*p);
	}
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)(c | 0x20);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void grpc_message_decode(struct cgn_str s, char *to, size_t cap)
{
	size_t n = 0;
	for (size_t i = 0; i < s.n && n + 1 < cap; i++) {
		int high = s.p[i] == '%' && i + 2 < s.n ? hex_digit(s.p[i + 1]) : -1;
		int low = high >= 0 ? hex_digit(s.p[i + 2]) : -1;
		if (low >= 0 && high * 16 + low != 0) { /* A NUL would end the message. */
			to[n++] = (char)(high * 16 + low);
			i += 2;
		} else {
			to[n++] = s.p[i];
		}
	}
	to[n] = '\0';
}

/* gRPC's doc/http-grpc-status-mapping.md: for answers from a proxy instead of a gRPC server. */
enum cgn_code grpc_code_from_http(int status)
{
	switch (status) {
	case 400:
		return CGN_INTERNAL;
	case 401:
		return CGN_UNAUTHENTICATED;
	case 403:
		return CGN_FORBIDDEN;
	case 404:
		return CGN_UNSUPPORTED;
	case 429:
	case 502:
	case 503:
	case 504:
		return CGN_UNAVAILABLE;
	default:
		return CGN_INTERNAL;
	}
}

static struct cgn_str field_find(const struct http_field *fields, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (cgn_str_is(fields[i].name, name))
			return fields[i].value;
	return (struct cgn_str){NULL, 0};
}

bool grpc_status_read(const struct http_field *fields, size_t n, struct cgn_err *out)
{
	struct cgn_str status = field_find(fields, n, "grpc-status");
	uint64_t number;
	if (status.p == NULL)
		return false;
	if (!cgn_str_u64(status, &number) || number > 16)
		number = 2; /* UNKNOWN, as the protocol asks. */
	*out = (struct cgn_err){.code = cgn_code_from_grpc((int)number), .where = CGN_HERE};
	grpc_message_decode(field_find(fields, n, "grpc-message"), out->msg, sizeof out->msg);
	if (out->code != CGN_FINE && out->msg[0] == '\0')
		(void)snprintf(out->msg, sizeof out->msg, "the server answered status %u without a sentence",
			(unsigned)number);
	return true;
}
