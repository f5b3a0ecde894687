/* SPDX-License-Identifier: Apache-2.0 */
/* url: parse a Redis URL as operators write it. */
#include "base/codec/codec.h"
#include "io/net/net/net.h"
#include "io/wire/redis/redis.h"

#define SHAPE "must be redis://[:password@]host:port/db, rediss://... or unix:/path"

static bool url_unescape(struct cgn_str s, char *out, size_t cap)
{
	struct cgn_buf b = cgn_buf_over(out, cap - 1);
	for (size_t i = 0; i < s.n; i++) {
		bool escaped = s.p[i] == '%';
		int hi = escaped && i + 2 < s.n ? hex_digit(s.p[i + 1]) : -1;
		int lo = hi >= 0 ? hex_digit(s.p[i + 2]) : -1;
		if (escaped && (lo < 0 || hi + lo == 0))
			return false; /* Not a %-escape, or an escape of NUL. */
		cgn_buf_char(&b, escaped ? (char)(hi * 16 + lo) : s.p[i]);
		i += escaped ? 2 : 0;
	}
	out[b.n] = '\0';
	return !b.bad;
}

static bool db_parse(struct cgn_str s, uint32_t *out)
{
	uint64_t v = 0;
	if (s.n > 0 && (!cgn_str_u64(s, &v) || v > 65535))
		return false;
	*out = (uint32_t)v;
	return true;
}

/* "user:password@" */
static bool user_parse(struct cgn_str s, struct redis_url *out)
{
	struct cgn_str password = s, user = cgn_str_split(&password, ':');
	return url_unescape(user, out->user, sizeof out->user) &&
		url_unescape(password, out->password, sizeof out->password);
}

static bool net_parse(struct cgn_str s, struct redis_url *out)
{
	struct cgn_str path = s, host = cgn_str_split(&path, '/');
	size_t at = host.n;
	while (at > 0 && host.p[at - 1] != '@') /* Take the last '@': a password may contain others. */
		at--;
	if (at > 0 && !user_parse((struct cgn_str){host.p, at - 1}, out))
		return false;
	host = (struct cgn_str){host.p + at, host.n - at};
	size_t colon = host.n;
	while (colon > 0 && host.p[colon - 1] != ':' && host.p[colon - 1] != ']')
		colon--;
	bool has_port = colon > 0 && host.p[colon - 1] == ':';
	int n = snprintf(out->addr, sizeof out->addr, "%.*s%s", CGN_STR_ARG(host), has_port ? "" : ":6379");
	return host.n > 0 && (size_t)n < sizeof out->addr && db_parse(path, &out->db);
}

static bool unix_parse(struct cgn_str s, struct redis_url *out)
{
	struct cgn_str query = s, path = cgn_str_split(&query, '?');
	if (query.p != NULL && !cgn_str_starts(query, "db="))
		return false;
	size_t skip = cgn_str_starts(path, "unix://") ? 7 : 5;
	path = (struct cgn_str){path.p + skip, path.n - skip};
	int n = snprintf(out->addr, sizeof out->addr, "unix:%.*s", CGN_STR_ARG(path));
	return path.n > 0 && (size_t)n < sizeof out->addr &&
		(query.p == NULL || db_parse((struct cgn_str){query.p + 3, query.n - 3}, &out->db));
}

CGN_RC redis_url_parse(const char *text, struct redis_url *out, struct cgn_err *err)
{
	struct cgn_str s = cgn_str_of(text);
	struct cgn_err why;
	bool ok = false;
	*out = (struct redis_url){.tls = cgn_str_starts(s, "rediss://")};
	size_t skip = out->tls ? strlen("rediss://") : strlen("redis://");
	if (cgn_str_starts(s, "unix:"))
		ok = unix_parse(s, out);
	else if (out->tls || cgn_str_starts(s, "redis://"))
		ok = net_parse((struct cgn_str){s.p + skip, s.n - skip}, out);
	if (!ok)
		return CGN_FAIL(err, INVALID, "the address of Redis " SHAPE);
	if (!cgn_ok(net_addr_check(out->addr, &why)))
		return CGN_FAIL(err, INVALID, "the address of Redis " SHAPE " (%s)", why.msg);
	return CGN_OK;
}
