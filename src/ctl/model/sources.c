/* SPDX-License-Identifier: Apache-2.0 */
/* sources: lists what a hub, a registry, a bucket, a server or a folder has. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>

#include "base/codec/codec.h"
#include "ctl/model/pull_priv.h"
#include "io/os/disk/disk.h"

#define DOCUMENT_MOST ((uint64_t)32 << 20)
#define PAGES_MOST    1000
#define DEPTH_MOST    32

/* ---- requests ---- */

void pull_request(const struct pull *p, const char *url, struct fetch_request *rq)
{
	*rq = (struct fetch_request){.url = url, .ca_file = p->ca_file};
	if (p->authorization[0] != '\0')
		rq->headers[rq->n_headers++] = p->authorization;
	if (p->key[0] != '\0') {
		rq->aws_region = p->region;
		rq->aws_key = p->key;
		rq->headers[rq->n_headers++] = "x-amz-content-sha256: UNSIGNED-PAYLOAD";
	}
}

static const char *key_hint(const struct pull *p)
{
	switch (p->source.kind) {
	case MODELSOURCE_HUB:
		return "set HF_TOKEN or --token-file, and accept the model's terms on its page if it has some";
	case MODELSOURCE_OCI:
		return "give --token-file with a token, or with USER:PASSWORD";
	case MODELSOURCE_S3:
		return "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION of a key that may read and list the bucket";
	case MODELSOURCE_HTTP:
	case MODELSOURCE_PATH:
	default:
		return "give --token-file";
	}
}

CGN_RC pull_refusal(const struct pull *p, const char *what, int status, struct cgn_err *err)
{
	int n = (int)strcspn(what, "?"); /* A query may be a signature. */
	if (status == 401 || status == 403)
		return CGN_FAIL(err, FORBIDDEN, "%.*s: status %d, %s: %s", n, what, status,
			p->authorization[0] != '\0' || p->key[0] != '\0' ? "the key is refused"
									 : "a key is asked for",
			key_hint(p));
	if (status == 404)
		return CGN_FAIL(err, NOT_FOUND, "%.*s: status 404: there is no such model, revision or file",
			n, what);
	return CGN_FAIL(err, UNAVAILABLE, "%.*s: status %d", n, what, status);
}

/* Get a list or a manifest. */
static CGN_RC document_get(struct pull *p, struct fetch *f, const char *url, const char *accept,
	struct fetch_result *r, struct cgn_buf *out, struct cgn_err *err)
{
	struct fetch_request rq;
	pull_request(p, url, &rq);
	rq.most = DOCUMENT_MOST;
	if (accept != NULL)
		rq.headers[rq.n_headers++] = accept;
	return fetch_document(f, &rq, r, out, err);
}

static void path_put(struct cgn_buf *out, const char *path)
{
	for (; *path != '\0'; path++) {
		char c = *path;
		bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
			strchr("-_.~/", c) != NULL;
		if (plain)
			cgn_buf_char(out, c);
		else
			cgn_buf_fmt(out, "%%%02X", (unsigned char)c);
	}
}

/* A value of a query has no plain '/'. */
static void value_put(struct cgn_buf *out, const char *value)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	path_put(&b, value);
	for (size_t i = 0; i < b.n; i++)
		if (b.p[i] == '/')
			cgn_buf_putz(out, "%2F");
		else
			cgn_buf_char(out, b.p[i]);
}

void pull_url(const struct pull *p, const struct modelsource_file *f, struct cgn_buf *out)
{
	switch (p->source.kind) {
	case MODELSOURCE_HUB:
		cgn_buf_fmt(out, "%s/%s/resolve/%s/", p->endpoint, p->source.name, p->commit);
		path_put(out, f->where);
		break;
	case MODELSOURCE_OCI:
		cgn_buf_fmt(out, "%s/v2/%s/blobs/%s", p->endpoint, p->source.name, f->where);
		break;
	case MODELSOURCE_S3:
		cgn_buf_fmt(out, "%s/", p->endpoint);
		path_put(out, f->where);
		break;
	case MODELSOURCE_HTTP:
	case MODELSOURCE_PATH:
	default:
		cgn_buf_putz(out, f->where);
		break;
	}
}

/* ---- the hub ---- */

/* The revision may be a branch that moves: all files are taken of the commit that it is now. */
static CGN_RC hub_commit(struct pull *p, struct fetch *f, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf url = {0}, body = {0};
	struct fetch_result r;
	struct json_val all;
	cgn_buf_fmt(&url, "%s/api/models/%s/revision/", p->endpoint, p->source.name);
	value_put(&url, p->source.revision);
	CGN_TRY(document_get(p, f, cgn_buf_z(&url), NULL, &r, &body, err));
	if (r.status != 200)
		return pull_refusal(p, cgn_buf_z(&url), r.status, err);
	struct cgn_str sha = {NULL, 0};
	if (cgn_ok(json_parse(cgn_buf_view(&body), &all, NULL, NULL)))
		sha = json_get_str(all, "sha", &p->arena);
	if (sha.n == 0 || !modelsource_path_is_safe(sha) || !cgn_str_copyz(p->commit, sizeof p->commit, sha))
		return CGN_FAIL(err, BAD_GATEWAY, "%s: the answer names no commit", cgn_buf_z(&url));
	return CGN_OK;
}

/* True when |at|, the address of a list's next page, was a page before: the server leads in a circle, of any length
 * (Brent's algorithm: |seen| moves on at powers of two). |page| counts from 0. */
static bool pages_repeat(char *seen, size_t cap, const char *at, size_t page)
{
	if (strcmp(seen, at) == 0)
		return true;
	if ((page & (page + 1)) == 0)
		(void)snprintf(seen, cap, "%s", at);
	return false;
}

static CGN_RC hub_list(struct pull *p, struct fetch *f, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf url = {0}, body = {0};
	struct fetch_result r;
	char seen[sizeof r.link] = "";
	size_t lead = strlen(p->endpoint);
	CGN_TRY(hub_commit(p, f, err));
	cgn_buf_fmt(&url, "%s/api/models/%s/tree/%s?recursive=true", p->endpoint, p->source.name, p->commit);
	for (size_t page = 0; page < PAGES_MOST; page++) {
		body.n = 0;
		CGN_TRY(document_get(p, f, cgn_buf_z(&url), NULL, &r, &body, err));
		if (r.status != 200)
			return pull_refusal(p, cgn_buf_z(&url), r.status, err);
		CGN_TRY(modelsource_hub_read(cgn_buf_view(&body), &p->list, err));
		if (r.link[0] == '\0')
			return CGN_OK;
		if (strncmp(r.link, p->endpoint, lead) != 0 || r.link[lead] != '/')
			return CGN_FAIL(err, BAD_GATEWAY,
				"the hub's list goes on at %s, which is not an address below %s", r.link,
				p->endpoint);
		if (pages_repeat(seen, sizeof seen, r.link, page))
			return CGN_FAIL(err, BAD_GATEWAY, "the hub's list leads in a circle, back to %s",
				r.link);
		url.n = 0;
		cgn_buf_putz(&url, r.link);
	}
	return CGN_FAIL(err, TOO_LARGE, "the hub's list has more than %d pages", PAGES_MOST);
}

/* ---- a registry ---- */

#define OCI_ACCEPT                                                                                      \
	"Accept: application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, " \
	"application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json"

/* Take the value of a quoted parameter of WWW-Authenticate. */
static bool parameter_take(const char *text, const char *name, char *out, size_t cap)
{
	char key[32];
	(void)snprintf(key, sizeof key, "%s=\"", name);
	const char *at = strstr(text, key), *end = at != NULL ? strchr(at + strlen(key), '"') : NULL;
	return end != NULL &&
		cgn_str_copyz(out, cap, (struct cgn_str){at + strlen(key), (size_t)(end - at) - strlen(key)});
}

static CGN_RC oci_token(struct pull *p, struct fetch *f, const char *challenge, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf url = {0}, body = {0};
	char realm[512], service[256] = "", scope[600];
	struct fetch_result r;
	struct json_val all;
	if (!parameter_take(challenge, "realm", realm, sizeof realm) ||
		(strncmp(realm, "https://", 8) != 0 && strncmp(realm, "http://", 7) != 0))
		return pull_refusal(p, p->endpoint, 401, err);
	if (strncmp(p->endpoint, "https:", 6) == 0 && strncmp(realm, "https:", 6) != 0)
		return CGN_FAIL(err, TLS, "%s asks for its token in clear at %s: it is not sent", p->endpoint,
			realm);
	(void)parameter_take(challenge, "service", service, sizeof service);
	(void)snprintf(scope, sizeof scope, "repository:%.500s:pull", p->source.name);
	cgn_buf_fmt(&url, "%s%cservice=", realm, strchr(realm, '?') != NULL ? '&' : '?');
	value_put(&url, service);
	cgn_buf_putz(&url, "&scope=");
	value_put(&url, scope);
	CGN_TRY(document_get(p, f, cgn_buf_z(&url), NULL, &r, &body, err));
	if (r.status != 200)
		return pull_refusal(p, cgn_buf_z(&url), r.status, err);
	struct cgn_str token = {NULL, 0};
	if (cgn_ok(json_parse(cgn_buf_view(&body), &all, NULL, NULL))) {
		token = json_get_str(all, "token", &p->arena);
		token = token.n > 0 ? token : json_get_str(all, "access_token", &p->arena);
	}
	if (token.n == 0 || token.n > sizeof p->authorization - 32 || memchr(token.p, '\n', token.n) != NULL)
		return CGN_FAIL(err, BAD_GATEWAY, "%s: the answer has no token", cgn_buf_z(&url));
	(void)snprintf(p->authorization, sizeof p->authorization, "Authorization: Bearer %.*s",
		CGN_STR_ARG(token));
	return CGN_OK;
}

static CGN_RC oci_list(struct pull *p, struct fetch *f, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf url = {0}, body = {0};
	char reference[256], next[128];
	struct fetch_result r;
	bool has_token = false;
	(void)snprintf(reference, sizeof reference, "%s", p->source.revision);
	for (size_t step = 0; step < 4; step++) {
		url.n = body.n = 0;
		cgn_buf_fmt(&url, "%s/v2/%s/manifests/%s", p->endpoint, p->source.name, reference);
		CGN_TRY(document_get(p, f, cgn_buf_z(&url), OCI_ACCEPT, &r, &body, err));
		if (r.status == 401 && !has_token && strncasecmp(r.authenticate, "Bearer", 6) == 0) {
			has_token = true;
			CGN_TRY(oci_token(p, f, r.authenticate, err));
			continue;
		}
		if (r.status != 200)
			return pull_refusal(p, cgn_buf_z(&url), r.status, err);
		CGN_TRY(modelsource_oci_read(cgn_buf_view(&body), &p->list, next, err));
		if (next[0] == '\0')
			return CGN_OK;
		(void)snprintf(reference, sizeof reference, "%s", next);
	}
	return CGN_FAIL(err, BAD_GATEWAY, "%s: an index that leads to no manifest", p->endpoint);
}

/* ---- a bucket ---- */

static CGN_RC s3_list(struct pull *p, struct fetch *f, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf url = {0}, body = {0};
	char token[1100] = "", seen[sizeof token] = "";
	struct fetch_result r;
	for (size_t page = 0; page < PAGES_MOST; page++) {
		url.n = body.n = 0;
		/* The signature is made over the sorted query: keep the order of names. */
		cgn_buf_fmt(&url, "%s/?", p->endpoint);
		if (token[0] != '\0') {
			cgn_buf_putz(&url, "continuation-token=");
			value_put(&url, token);
			cgn_buf_char(&url, '&');
		}
		cgn_buf_putz(&url, "list-type=2&prefix=");
		value_put(&url, p->source.prefix);
		CGN_TRY(document_get(p, f, cgn_buf_z(&url), NULL, &r, &body, err));
		if (r.status != 200)
			return pull_refusal(p, cgn_buf_z(&url), r.status, err);
		CGN_TRY(modelsource_s3_read(cgn_buf_view(&body), p->source.prefix, &p->list, token, err));
		if (token[0] == '\0')
			return CGN_OK;
		if (pages_repeat(seen, sizeof seen, token, page))
			return CGN_FAIL(err, BAD_GATEWAY,
				"the bucket's list leads in a circle: it names the same next page again");
	}
	return CGN_FAIL(err, TOO_LARGE, "the bucket's list has more than %d pages", PAGES_MOST);
}

/* ---- a folder ---- */

static CGN_RC errno_name(const char *path, struct cgn_err *err)
{
	if (errno == ENOENT)
		return CGN_FAIL(err, NOT_FOUND, "%s: there is no such file or folder", path);
	return CGN_FAIL(err, STORAGE, "%s: %s", path, strerror(errno));
}

static CGN_RC folder_list(struct pull *p, const char *folder, const char *below, unsigned depth,
	struct cgn_err *err)
{
	DIR *d = opendir(folder);
	struct dirent *e;
	cgn_rc rc = CGN_OK;
	if (d == NULL)
		return errno_name(folder, err);
	while (cgn_ok(rc) && (e = readdir(d)) != NULL) {
		char path[PULL_PATH], name[PULL_PATH];
		struct stat st;
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		bool fits = (size_t)snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < sizeof path &&
			(size_t)snprintf(name, sizeof name, "%s%s", below, e->d_name) < sizeof name;
		if (!fits || stat(path, &st) != 0)
			rc = CGN_FAIL(err, STORAGE, "%s/%s: %s", folder, e->d_name,
				fits ? strerror(errno) : "too long");
		else if (S_ISDIR(st.st_mode) && e->d_type == DT_LNK)
			rc = CGN_FAIL(err, INVALID,
				"%s is a link to a folder, which is not followed: put the folder itself there",
				path);
		else if (S_ISREG(st.st_mode))
			rc = modelsource_list_add(&p->list, cgn_str_of(name), cgn_str_of(path),
				(uint64_t)st.st_size, (struct cgn_str){NULL, 0}, err);
		else if (S_ISDIR(st.st_mode) && depth < DEPTH_MOST && strlen(name) + 2 < sizeof name)
			rc = folder_list(p, path, strcat(name, "/"), depth + 1, err);
	}
	(void)closedir(d);
	return rc;
}

static CGN_RC path_list(struct pull *p, struct cgn_err *err)
{
	struct stat st;
	if (stat(p->source.name, &st) != 0)
		return errno_name(p->source.name, err);
	if (S_ISDIR(st.st_mode))
		return folder_list(p, p->source.name, "", 0, err);
	return modelsource_list_add(&p->list, modelsource_title(&p->source), cgn_str_of(p->source.name),
		(uint64_t)st.st_size, (struct cgn_str){NULL, 0}, err);
}

/* ---- addresses and keys ---- */

static const char *set_value(const char *name)
{
	const char *v = getenv(name);
	return v != NULL && v[0] != '\0' ? v : NULL;
}

static CGN_RC endpoint_set(struct pull *p, const char *value, struct cgn_err *err)
{
	size_t n = strlen(value);
	while (n > 0 && value[n - 1] == '/')
		n--;
	if ((strncmp(value, "http://", 7) != 0 && strncmp(value, "https://", 8) != 0) ||
		strcspn(strstr(value, "://") + 3, "/?#:") == 0 ||
		!cgn_str_copyz(p->endpoint, sizeof p->endpoint, (struct cgn_str){value, n}))
		return CGN_FAIL(err, INVALID,
			"\"%s\" is not an address of a server: http://HOST or https://HOST", value);
	return CGN_OK;
}

static bool is_loopback(const char *host)
{
	return strncmp(host, "127.", 4) == 0 || strncmp(host, "localhost", 9) == 0 ||
		strncmp(host, "[::1]", 5) == 0;
}

/* Like other tools, a bucket has a host of its own at Amazon, and is a path at another endpoint. */
static CGN_RC s3_address(struct pull *p, struct cgn_err *err)
{
	const char *id = set_value("AWS_ACCESS_KEY_ID"), *secret = set_value("AWS_SECRET_ACCESS_KEY");
	const char *region = set_value("AWS_REGION"), *other = set_value("AWS_ENDPOINT_URL_S3");
	char url[sizeof p->endpoint + sizeof p->source.name + 128];
	region = region != NULL ? region : set_value("AWS_DEFAULT_REGION");
	other = other != NULL ? other : set_value("AWS_ENDPOINT_URL");
	(void)snprintf(p->region, sizeof p->region, "%s", region != NULL ? region : "us-east-1");
	if ((id == NULL) != (secret == NULL))
		return CGN_FAIL(err, INVALID,
			"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY go together: one is not set");
	if (id != NULL)
		(void)snprintf(p->key, sizeof p->key, "%s:%s", id, secret);
	if (set_value("AWS_SESSION_TOKEN") != NULL)
		return CGN_FAIL(err, UNSUPPORTED,
			"AWS_SESSION_TOKEN: keys with a session's token are not supported; use a key of a user");
	if (other != NULL)
		(void)snprintf(url, sizeof url, "%s%s%s", other, other[strlen(other) - 1] == '/' ? "" : "/",
			p->source.name);
	else
		(void)snprintf(url, sizeof url, "https://%s.s3.%s.amazonaws.com", p->source.name, p->region);
	return endpoint_set(p, url, err);
}

static CGN_RC token_read(struct pull *p, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf file = {0}, basic = {0};
	const char *path = ctl_flag(p->args, "--token-file"), *hub = set_value("HF_TOKEN");
	struct cgn_str rest, token = cgn_str_of(p->source.kind == MODELSOURCE_HUB ? hub : NULL);
	if (path != NULL) {
		CGN_TRY(disk_read_file(path, 4096, &file, err));
		rest = cgn_buf_view(&file);
		token = cgn_str_trim(cgn_str_split(&rest, '\n'));
		if (token.n == 0)
			return CGN_FAIL(err, INVALID, "--token-file %s: its first line is empty", path);
	}
	for (size_t i = 0; i < token.n; i++)
		if (token.p[i] <= ' ' || token.p[i] > '~')
			return CGN_FAIL(err, INVALID, "%s: a token is one word of visible characters",
				path != NULL ? path : "HF_TOKEN");
	if (token.n == 0)
		return CGN_OK;
	bool pair = memchr(token.p, ':', token.n) != NULL;
	if (pair)
		base64_put(&basic, token);
	struct cgn_str shown = pair ? cgn_buf_view(&basic) : token;
	if (basic.bad || shown.n + 32 > sizeof p->authorization)
		return CGN_FAIL(err, INVALID, "the token is longer than %zu bytes",
			sizeof p->authorization - 32);
	(void)snprintf(p->authorization, sizeof p->authorization, "Authorization: %s %.*s",
		pair ? "Basic" : "Bearer", CGN_STR_ARG(shown));
	return CGN_OK;
}

static CGN_RC address_find(struct pull *p, struct cgn_err *err)
{
	const char *hub = set_value("HF_ENDPOINT");
	char url[600];
	CGN_TRY(token_read(p, err));
	switch (p->source.kind) {
	case MODELSOURCE_HUB:
		return endpoint_set(p, hub != NULL ? hub : "https://huggingface.co", err);
	case MODELSOURCE_OCI:
		(void)snprintf(url, sizeof url, "%s://%s", is_loopback(p->source.host) ? "http" : "https",
			p->source.host);
		return endpoint_set(p, url, err);
	case MODELSOURCE_S3:
		return s3_address(p, err);
	case MODELSOURCE_HTTP:
	case MODELSOURCE_PATH:
	default:
		return CGN_OK;
	}
}

CGN_RC pull_list(struct pull *p, struct cgn_err *err)
{
	struct fetch *f = NULL;
	cgn_rc rc;
	CGN_TRY(address_find(p, err));
	if (p->source.kind == MODELSOURCE_PATH)
		return path_list(p, err);
	if (p->source.kind == MODELSOURCE_HTTP)
		return modelsource_list_add(&p->list, modelsource_title(&p->source),
			cgn_str_of(p->source.name), UINT64_MAX, cgn_str_of(p->sha256), err);
	CGN_TRY(fetch_open(&f, err));
	rc = p->source.kind == MODELSOURCE_HUB      ? hub_list(p, f, err)
		: p->source.kind == MODELSOURCE_OCI ? oci_list(p, f, err)
						    : s3_list(p, f, err);
	fetch_close(&f);
	if (cgn_ok(rc) && p->list.n == 0)
		rc = CGN_FAIL(err, NOT_FOUND, "%s: there are no files", p->from);
	return rc;
}
