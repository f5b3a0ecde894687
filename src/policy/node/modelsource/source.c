/* SPDX-License-Identifier: Apache-2.0 */
/* source: addresses of models. */
#include <string.h>

#include "policy/node/modelsource/modelsource.h"

#define ALLOWED "hf:ORG/REPO[@REVISION], oci://HOST/REPO[:TAG], s3://BUCKET/PREFIX, https://..., or a path"

static bool is_plain(struct cgn_str s, const char *more)
{
	for (size_t i = 0; i < s.n; i++) {
		char c = s.p[i];
		bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
		if (!word && (c == '\0' || strchr(more, c) == NULL))
			return false;
	}
	return s.n > 0;
}

static bool parts_are_plain(struct cgn_str s, const char *more)
{
	do {
		struct cgn_str part = cgn_str_split(&s, '/');
		if (!is_plain(part, more) || cgn_str_is(part, ".") || cgn_str_is(part, ".."))
			return false;
	} while (s.p != NULL);
	return true;
}

static CGN_RC hub_parse(const char *text, struct cgn_str rest, struct modelsource *out, struct cgn_err *err)
{
	struct cgn_str name = cgn_str_split(&rest, '@');
	size_t slashes = 0;
	for (size_t i = 0; i < name.n; i++)
		slashes += name.p[i] == '/';
	out->kind = MODELSOURCE_HUB;
	if (slashes != 1 || !parts_are_plain(name, "-_.") ||
		!cgn_str_copyz(out->name, sizeof out->name, name))
		return CGN_FAIL(err, INVALID,
			"\"%s\": a model of the hub is hf:ORG/REPO or hf:ORG/REPO@REVISION", text);
	if (rest.p == NULL)
		rest = CGN_STR("main");
	if (!parts_are_plain(rest, "-_.") || !cgn_str_copyz(out->revision, sizeof out->revision, rest))
		return CGN_FAIL(err, INVALID, "\"%s\": the revision after @ is a branch, a tag or a commit",
			text);
	return CGN_OK;
}

static CGN_RC oci_parse(const char *text, struct cgn_str rest, struct modelsource *out, struct cgn_err *err)
{
	struct cgn_str host = cgn_str_split(&rest, '/'), name = rest, tag = {NULL, 0};
	bool is_digest = false;
	for (size_t i = name.n; i > 0 && tag.p == NULL; i--)
		if (name.p[i - 1] == '@' || (name.p[i - 1] == ':' && memchr(name.p, '@', i) == NULL)) {
			tag = (struct cgn_str){name.p + i, name.n - i};
			is_digest = name.p[i - 1] == '@';
			name.n = i - 1;
		}
	if (tag.p == NULL)
		tag = CGN_STR("latest");
	out->kind = MODELSOURCE_OCI;
	if (!is_plain(host, "-.:[]") || !parts_are_plain(name, "-_.") ||
		!cgn_str_copyz(out->host, sizeof out->host, host) ||
		!cgn_str_copyz(out->name, sizeof out->name, name))
		return CGN_FAIL(err, INVALID,
			"\"%s\": a registry's model is oci://HOST/REPO:TAG or oci://HOST/REPO@sha256:HEX",
			text);
	if (!is_plain(tag, "-_.:") || (is_digest && !cgn_str_starts(tag, "sha256:")) ||
		!cgn_str_copyz(out->revision, sizeof out->revision, tag))
		return CGN_FAIL(err, INVALID, "\"%s\": after the repository comes :TAG or @sha256:HEX", text);
	return CGN_OK;
}

static CGN_RC s3_parse(const char *text, struct cgn_str rest, struct modelsource *out, struct cgn_err *err)
{
	struct cgn_str bucket = cgn_str_split(&rest, '/');
	while (rest.n > 0 && rest.p[rest.n - 1] == '/')
		rest.n--;
	out->kind = MODELSOURCE_S3;
	if (!is_plain(bucket, "-.") || !cgn_str_copyz(out->name, sizeof out->name, bucket) ||
		!cgn_str_copyz(out->prefix, sizeof out->prefix, rest))
		return CGN_FAIL(err, INVALID, "\"%s\": a bucket's model is s3://BUCKET/PREFIX", text);
	return CGN_OK;
}

CGN_RC modelsource_parse(const char *text, struct modelsource *out, struct cgn_err *err)
{
	struct cgn_str s = cgn_str_of(text);
	*out = (struct modelsource){.kind = MODELSOURCE_PATH};
	if (cgn_str_starts(s, "hf:"))
		return hub_parse(text, (struct cgn_str){s.p + 3, s.n - 3}, out, err);
	if (cgn_str_starts(s, "oci://"))
		return oci_parse(text, (struct cgn_str){s.p + 6, s.n - 6}, out, err);
	if (cgn_str_starts(s, "s3://"))
		return s3_parse(text, (struct cgn_str){s.p + 5, s.n - 5}, out, err);
	if (cgn_str_starts(s, "http://") || cgn_str_starts(s, "https://")) {
		out->kind = MODELSOURCE_HTTP;
		const char *host = strstr(text, "://") + 3;
		if (strcspn(host, "/?#:") == 0)
			return CGN_FAIL(err, INVALID, "\"%.80s\": there is no host in it", text);
		if (memchr(host, '@', strcspn(host, "/?#")) != NULL)
			return CGN_FAIL(err, INVALID,
				"the URL has a user name or a password in it: put USER:PASSWORD into a file, "
				"and name it with --token-file");
	} else if (cgn_str_starts(s, "file:///"))
		s = (struct cgn_str){s.p + 7, s.n - 7};
	else if (strstr(text, "://") != NULL)
		return CGN_FAIL(err, INVALID, "\"%s\": no such kind of source; allowed are " ALLOWED, text);
	else if (cgn_str_starts(s, "file:"))
		s = (struct cgn_str){s.p + 5, s.n - 5};
	if (s.n == 0 || !cgn_str_copyz(out->name, sizeof out->name, s))
		return CGN_FAIL(err, INVALID, "\"%.80s\": a source has 1 to %zu bytes; allowed are " ALLOWED,
			text, sizeof out->name - 1);
	return CGN_OK;
}

struct cgn_str modelsource_title(const struct modelsource *s)
{
	struct cgn_str name =
		cgn_str_of(s->kind == MODELSOURCE_S3 && s->prefix[0] != '\0' ? s->prefix : s->name);
	if (s->kind == MODELSOURCE_HTTP)
		name = cgn_str_split(&name, '?');
	while (name.n > 0 && name.p[name.n - 1] == '/')
		name.n--;
	for (size_t i = name.n; i > 0; i--)
		if (name.p[i - 1] == '/')
			return (struct cgn_str){name.p + i, name.n - i};
	return name;
}
