/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/who/site/site.h"

/* ---- names ---- */

/* Return the host of |authority| without port and final dot, an IPv6 address in its brackets. */
static struct cgn_str host_of(struct cgn_str authority)
{
	size_t n = 0;
	if (authority.n > 0 && authority.p[0] == '[') {
		while (n < authority.n && authority.p[n] != ']')
			n++;
		return (struct cgn_str){authority.p, n < authority.n ? n + 1 : n};
	}
	while (n < authority.n && authority.p[n] != ':')
		n++;
	if (n > 1 && authority.p[n - 1] == '.')
		n--;
	return (struct cgn_str){authority.p, n};
}

static bool host_is_address(struct cgn_str host)
{
	if (host.n > 0 && host.p[0] == '[')
		return host.p[host.n - 1] == ']';
	for (size_t i = 0; i < host.n; i++)
		if ((host.p[i] < '0' || host.p[i] > '9') && host.p[i] != '.')
			return false;
	return host.n > 0;
}

static bool host_is(struct cgn_str host, const char *name)
{
	return cgn_str_eq_nocase(host, cgn_str_of(name));
}

/* Is |host| a name below |domain|, which begins with a dot? */
static bool host_is_below(struct cgn_str host, const char *domain)
{
	size_t n = strlen(domain);
	return host.n > n && host_is((struct cgn_str){host.p + host.n - n, n}, domain);
}

static bool host_is_loopback(struct cgn_str host)
{
	return host_is(host, "localhost") || host_is_below(host, ".localhost") || host_is(host, "[::1]") ||
		(host_is_address(host) && (cgn_str_starts(host, "127.") || host_is(host, "0.0.0.0")));
}

/* The machine may be asked by its first label alone, or have been told its first label alone. */
static bool host_is_machine(struct cgn_str host, const char *machine)
{
	struct cgn_str rest = cgn_str_of(machine), label = cgn_str_split(&rest, '.');
	return label.n > 0 && (host_is(host, machine) || cgn_str_eq_nocase(host, label));
}

static bool host_is_private(struct cgn_str host)
{
	static const char *const domains[] = {".local", ".internal", ".svc"};
	if (memchr(host.p, '.', host.n) == NULL)
		return true;
	for (size_t i = 0; i < CGN_COUNT(domains); i++)
		if (host_is_below(host, domains[i]))
			return true;
	return false;
}

static bool host_is_listed(const struct site_rules *s, struct cgn_str host)
{
	for (size_t i = 0; i < s->n_hosts; i++) {
		const char *row = s->hosts[i];
		if (strcmp(row, "*") == 0 || host_is(host, row) ||
			(row[0] == '*' && host_is_below(host, row + 1)))
			return true;
	}
	return false;
}

static bool host_is_known(const struct site_rules *s, struct cgn_str authority, bool local)
{
	struct cgn_str host = host_of(authority);
	if (host.n == 0 || host_is_address(host) || host_is_loopback(host) || host_is_listed(s, host))
		return true;
	return (s->machine != NULL && host_is_machine(host, s->machine)) ||
		(s->listen != NULL && cgn_str_eq_nocase(host, host_of(cgn_str_of(s->listen)))) ||
		(!local && host_is_private(host));
}

/* ---- pages ---- */

/* Split |origin| into its scheme and host; false: it names no site ("null"). */
static bool origin_split(struct cgn_str origin, struct cgn_str *scheme, struct cgn_str *authority)
{
	const char *mark = origin.n > 0 ? memmem(origin.p, origin.n, "://", 3) : NULL;
	if (mark == NULL)
		return false;
	*scheme = (struct cgn_str){origin.p, (size_t)(mark - origin.p)};
	*authority = (struct cgn_str){mark + 3, origin.n - scheme->n - 3};
	return true;
}

static bool scheme_is_web(struct cgn_str scheme)
{
	return cgn_str_is(scheme, "http") || cgn_str_is(scheme, "https");
}

/* Is it a page of this machine, or of a program on it? No web site has an origin of these schemes. */
static bool origin_is_near(struct cgn_str origin)
{
	static const char *const programs[] = {"app", "file", "tauri", "vscode-webview", "vscode-file"};
	struct cgn_str scheme, authority;
	if (!origin_split(origin, &scheme, &authority))
		return false;
	if (scheme_is_web(scheme))
		return host_is_loopback(host_of(authority));
	for (size_t i = 0; i < CGN_COUNT(programs); i++)
		if (cgn_str_is(scheme, programs[i]))
			return true;
	return false;
}

static bool origin_is_own(struct cgn_str origin, struct cgn_str host)
{
	struct cgn_str scheme, authority;
	return origin_split(origin, &scheme, &authority) && scheme_is_web(scheme) && authority.n > 0 &&
		cgn_str_eq_nocase(authority, host);
}

/* The last star takes one character more when what follows it does not fit; a slash is never taken. */
static bool origin_fits(struct cgn_str pattern, struct cgn_str s)
{
	size_t i = 0, at = 0, star = SIZE_MAX, retry = 0;
	while (at < s.n) {
		if (i < pattern.n && pattern.p[i] == '*') {
			star = ++i;
			retry = at;
		} else if (i < pattern.n && pattern.p[i] == s.p[at]) {
			i++;
			at++;
		} else if (star != SIZE_MAX && s.p[retry] != '/') {
			i = star;
			at = ++retry;
		} else {
			return false;
		}
	}
	while (i < pattern.n && pattern.p[i] == '*')
		i++;
	return i == pattern.n;
}

bool site_may_read(const struct site_rules *s, struct cgn_str origin)
{
	if (origin.n == 0)
		return false;
	for (size_t i = 0; i < s->n_origins; i++)
		if (strcmp(s->origins[i], "*") == 0 || origin_fits(cgn_str_of(s->origins[i]), origin))
			return true;
	return s->near_pages && origin_is_near(origin);
}

/* A followed link, or a typed address, shows the answer in a window of its own. */
static bool is_followed_link(const struct site_request *q)
{
	return cgn_str_is(q->fetch_mode, "navigate") && cgn_str_is(q->method, "GET");
}

static bool page_is_foreign(const struct site_rules *s, const struct site_request *q)
{
	/* Browsers tell it to addresses by https and to this machine, and no page can change it. It holds behind a proxy that
	 * changes Host too. */
	if (cgn_str_is(q->fetch_site, "same-origin") || cgn_str_is(q->fetch_site, "none"))
		return false;
	if (q->origin.n > 0)
		return !origin_is_own(q->origin, q->host) && !site_may_read(s, q->origin);
	return q->fetch_site.n > 0 && !is_followed_link(q);
}

enum site_verdict site_judge(const struct site_rules *s, const struct site_request *q)
{
	if (!q->credential && !host_is_known(s, q->host, q->local))
		return SITE_OTHER_NAME;
	return page_is_foreign(s, q) ? SITE_OTHER_PAGE : SITE_FINE;
}

/* ---- settings ---- */

static bool text_is_plain(const char *text, const char *no)
{
	for (const char *p = text; *p != '\0'; p++)
		if (*p <= ' ' || *p > '~' || strchr(no, *p) != NULL)
			return false;
	return text[0] != '\0';
}

static bool row_is_host(const char *text)
{
	const char *star = strchr(text, '*');
	if (!text_is_plain(text, "/:@,\"\\"))
		return false;
	return star == NULL || strcmp(text, "*") == 0 ||
		(star == text && text[1] == '.' && text[2] != '\0' && strchr(text + 1, '*') == NULL);
}

static bool row_is_origin(const char *text)
{
	struct cgn_str scheme, authority;
	if (strcmp(text, "*") == 0 || strcmp(text, "null") == 0)
		return true;
	return text_is_plain(text, "@,\"\\") && origin_split(cgn_str_of(text), &scheme, &authority) &&
		scheme.n > 0 && authority.n > 0 && memchr(scheme.p, '*', scheme.n) == NULL &&
		memchr(authority.p, '/', authority.n) == NULL;
}

CGN_RC site_check_config(const struct config *c, struct cgn_err *err)
{
	for (size_t i = 0; i < c->security.allowed_hosts.n; i++)
		if (!row_is_host(c->security.allowed_hosts.v[i]))
			return CGN_FAIL(err, INVALID,
				"%s: security.allowed_hosts has \"%.100s\", must be a name without scheme and port, such as llm.example.net or *.example.net, or * for all names",
				config_origin(c, "security.allowed_hosts"), c->security.allowed_hosts.v[i]);
	for (size_t i = 0; i < c->security.allowed_origins.n; i++)
		if (!row_is_origin(c->security.allowed_origins.v[i]))
			return CGN_FAIL(err, INVALID,
				"%s: security.allowed_origins has \"%.100s\", must be SCHEME://HOST[:PORT] without a path, such as https://chat.example.net or http://10.0.0.7:*, or * for all pages",
				config_origin(c, "security.allowed_origins"),
				c->security.allowed_origins.v[i]);
	return CGN_OK;
}
