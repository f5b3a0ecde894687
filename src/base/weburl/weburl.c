/* SPDX-License-Identifier: Apache-2.0 */
#include "base/weburl/weburl.h"

#include <stdio.h>

/* Shows nothing that stands before '@', as it may be a password. */
static CGN_RC url_invalid(const char *url, const char *what, struct cgn_err *err)
{
	const char *at = strrchr(url, '@');
	return CGN_FAIL(err, INVALID,
		"the URL \"%s%.200s\": %s; it looks like http://127.0.0.1:8000 or https://host/v1",
		at != NULL ? "..." : "", at != NULL ? at : url, what);
}

/* True for an API version, such as "v1" or "v2beta". */
static bool is_version(struct cgn_str segment)
{
	return segment.n >= 2 && segment.p[0] == 'v' && segment.p[1] >= '0' && segment.p[1] <= '9';
}

static bool any_version(struct cgn_str path)
{
	while (path.p != NULL)
		if (is_version(cgn_str_split(&path, '/')))
			return true;
	return false;
}

static bool host_ok(struct cgn_str host, bool v6)
{
	for (size_t i = 0; i < host.n; i++) {
		char c = host.p[i];
		bool name = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
			c == '.' || c == '-' || c == '_';
		if (!name && !(v6 && c == ':'))
			return false;
	}
	return host.n > 0;
}

/* True when the base may stand in a request line. A base has no query and no fragment. */
static bool base_ok(struct cgn_str base)
{
	for (size_t i = 0; i < base.n; i++)
		if (base.p[i] <= ' ' || base.p[i] >= 0x7f || base.p[i] == '?' || base.p[i] == '#')
			return false;
	return true;
}

static CGN_RC url_authority(const char *url, struct cgn_str s, struct weburl *u, struct cgn_err *err)
{
	struct cgn_str port = {NULL, 0}, host;
	bool v6 = s.n > 0 && s.p[0] == '[';
	uint64_t n = u->tls ? 443 : 80;
	if (memchr(s.p, '@', s.n) != NULL)
		return url_invalid(url,
			"a user name or password does not belong there (api_key_file, or the setting for a password, takes it)",
			err);
	if (v6) {
		s.p++;
		s.n--;
		host = cgn_str_split(&s, ']');
		if (s.p == NULL || (s.n > 0 && s.p[0] != ':'))
			return url_invalid(url, "the bracket of the IPv6 address is not closed", err);
		if (s.n > 0)
			port = (struct cgn_str){s.p + 1, s.n - 1};
	} else {
		host = cgn_str_split(&s, ':');
		port = s;
	}
	if (!host_ok(host, v6) || !cgn_str_copyz(u->host, sizeof u->host, host))
		return url_invalid(url, "there is no host in it", err);
	if (port.p != NULL && (!cgn_str_u64(port, &n) || n == 0 || n > 65535))
		return url_invalid(url, "the port is not a number from 1 to 65535", err);
	u->port = (unsigned)n;
	bool usual = n == (u->tls ? 443U : 80U);
	(void)snprintf(u->addr, sizeof u->addr, v6 ? "[%s]:%u" : "%s:%u", u->host, u->port);
	if (usual)
		(void)snprintf(u->authority, sizeof u->authority, v6 ? "[%s]" : "%s", u->host);
	else
		(void)cgn_str_copyz(u->authority, sizeof u->authority, cgn_str_of(u->addr));
	return CGN_OK;
}

CGN_RC weburl_parse(const char *url, struct weburl *out, struct cgn_err *err)
{
	struct cgn_str s = cgn_str_of(url), base = {"", 0};
	*out = (struct weburl){.tls = cgn_str_starts(s, "https://")};
	if (!out->tls && !cgn_str_starts(s, "http://"))
		return url_invalid(url, "it does not begin with http:// or https://", err);
	size_t skip = out->tls ? 8 : 7;
	s = (struct cgn_str){s.p + skip, s.n - skip};
	const char *slash = s.n > 0 ? memchr(s.p, '/', s.n) : NULL;
	if (slash != NULL) {
		base = (struct cgn_str){slash, s.n - (size_t)(slash - s.p)};
		s.n = (size_t)(slash - s.p);
	}
	while (base.n > 0 && base.p[base.n - 1] == '/')
		base.n--;
	CGN_TRY(url_authority(url, s, out, err));
	if (!base_ok(base) || !cgn_str_copyz(out->base, sizeof out->base, base))
		return url_invalid(url, "its path is too long or has a query", err);
	out->base_is_version = any_version(base);
	return CGN_OK;
}

/* Return the base without a version at its end: "/api" for "/api/v1". */
static struct cgn_str above_version(struct cgn_str base)
{
	size_t at = base.n;
	while (at > 0 && base.p[at - 1] != '/')
		at--;
	if (at > 0 && is_version((struct cgn_str){base.p + at, base.n - at}))
		base.n = at - 1;
	return base;
}

void weburl_path(const struct weburl *u, struct cgn_str path, struct cgn_buf *out)
{
	struct cgn_str base = cgn_str_of(u->base);
	bool v1 = cgn_str_starts(path, "/v1") && (path.n == 3 || path.p[3] == '/' || path.p[3] == '?');
	if (u->base_is_version && v1) {
		path.p += 3;
		path.n -= 3;
	} else if (u->base_is_version) {
		base = above_version(base);
	}
	cgn_buf_str(out, base);
	cgn_buf_str(out, path);
}
