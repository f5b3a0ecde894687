/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/node/engineview/door.h"

#include "io/net/tls/tls.h"
#include "io/os/disk/disk.h"
#include "joint/daemon/svc/svc.h"
#include "joint/node/enginecall/enginecall.h"

#define KEY_BYTES 8192

/* Read the key's file into |text|, and borrow the key from it. */
static CGN_RC key_of(const char *section, const char *file, struct cgn_buf *text, struct cgn_str *out,
	struct cgn_err *err)
{
	char what[64];
	(void)snprintf(what, sizeof what, "%s.api_key_file", section);
	CGN_TRY(cgn_err_of(disk_read_file(file, KEY_BYTES, text, err), what, err));
	struct cgn_str key = cgn_buf_view(text), rest = key;
	key = cgn_str_trim(cgn_str_split(&rest, '\n'));
	if (key.n > 0 && key.p[key.n - 1] == '\r')
		key.n--;
	for (size_t i = 0; i < key.n; i++)
		if (key.p[i] <= ' ' || key.p[i] > '~')
			key.n = 0;
	if (key.n == 0)
		return CGN_FAIL(err, INVALID,
			"%s %s: its first line must be a key of visible ASCII characters", what, file);
	*out = key;
	return CGN_OK;
}

static CGN_RC key_read(struct engine_door *d, const char *section, const char *file, struct cgn_arena *arena,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct cgn_str key;
	CGN_TRY(key_of(section, file, &text, &key, err));
	d->authorization = cgn_arena_fmt(arena, "Bearer %.*s", CGN_STR_ARG(key));
	if (d->authorization == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the key of %s", file);
	return CGN_OK;
}

static CGN_RC url_read(const char *section, const char *url, struct weburl *out, struct cgn_err *err)
{
	char what[64];
	(void)snprintf(what, sizeof what, "%s.url", section);
	return cgn_err_of(weburl_parse(url, out, err), what, err);
}

CGN_RC engine_door_open(struct engine_door *d, const char *section, const struct config_engine *ce,
	struct cgn_arena *arena, struct cgn_err *err)
{
	static const char *const alpn[] = {"http/1.1", NULL};
	const struct tls_cfg tls = {.ca_file = ce->ca_file, .alpn = alpn};
	CGN_TRY(url_read(section, ce->url, &d->url, err));
	if (ce->api_key_file != NULL)
		CGN_TRY(key_read(d, section, ce->api_key_file, arena, err));
	return d->url.tls ? tls_ctx_new(&tls, &d->tls, err) : CGN_OK;
}

void engine_door_close(struct engine_door *d)
{
	tls_ctx_free(&d->tls);
}

CGN_RC engine_door_client(const struct engine_door *d, struct cgn_loop *l, uint32_t max_conns,
	struct http_client **out, struct cgn_err *err)
{
	const struct http_client_cfg cfg = {
		.addr = d->url.addr,
		.authority = d->url.authority,
		.tls = d->tls,
		.proto = HTTP_1,
		.max_conns = max_conns,
		.idle_timeout = ENGINECALL_IDLE,
	};
	return http_client_new(l, &cfg, out, err);
}

void engine_door_check(const char *section, const struct config_engine *ce, struct svc_problems *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	const struct tls_cfg tls = {.ca_file = ce->ca_file};
	struct weburl url;
	struct cgn_str key;
	struct cgn_err err;
	char prefix[64];
	(void)snprintf(prefix, sizeof prefix, "%s.", section);
	svc_problem(out, url_read(section, ce->url, &url, &err), &err);
	svc_check_tls(out, prefix, &tls);
	if (ce->api_key_file != NULL)
		svc_problem(out, key_of(section, ce->api_key_file, &text, &key, &err), &err);
}
