/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics/routers/routers.h"

#include <stdlib.h>
#include <string.h>

#include "base/codec/codec.h"
#include "base/weburl/weburl.h"
#include "joint/daemon/adminrelay/adminrelay.h"
#include "joint/web/webclient/webclient.h"

#define ROUTERS_TAG     0x20a7e450U
#define CONNECT_TIMEOUT (2 * CGN_SEC)
#define ANSWER_TIMEOUT  (5 * CGN_SEC)
#define NAME_BYTES      64
#define PATH_MOST       2048

struct routers_one {
	char name[NAME_BYTES];
	struct weburl url;
	struct http_client *client;
};
struct routers {
	uint32_t tag;
	size_t n;
	struct routers_one one[ROUTERS_MOST];
};

/* ---- settings ---- */

/* Split "NAME=URL"; without a name the URL's host and port are one. */
static CGN_RC entry_read(const char *entry, char name[NAME_BYTES], const char **url, struct cgn_err *err)
{
	struct weburl parsed;
	const char *equals = strchr(entry, '='), *scheme = strstr(entry, "://");
	bool is_named = equals != NULL && (scheme == NULL || equals < scheme);
	struct cgn_str text = {entry, is_named ? (size_t)(equals - entry) : 0};
	*url = is_named ? equals + 1 : entry;
	CGN_TRY(weburl_parse(*url, &parsed, err));
	if (!is_named)
		text = cgn_str_of(parsed.authority);
	if (text.n == 0 || !cgn_str_copyz(name, NAME_BYTES, text) || strpbrk(name, "/?#\"\\ ") != NULL)
		return CGN_FAIL(err, INVALID,
			"\"%s\": the name of a router has 1 to 63 characters and no / ? # \" \\ or space",
			entry);
	return CGN_OK;
}

static CGN_RC entry_take(struct cgn_loop *l, const struct config *cfg, const char *entry, struct routers *r,
	struct cgn_err *err)
{
	struct routers_one *to = &r->one[r->n];
	const char *url = NULL;
	CGN_TRY(entry_read(entry, to->name, &url, err));
	for (size_t i = 0; i < r->n; i++)
		if (strcmp(r->one[i].name, to->name) == 0)
			return CGN_FAIL(err, INVALID, "two routers are called \"%s\"", to->name);
	bool is_tls = cgn_str_starts(cgn_str_of(url), "https://");
	const struct webclient_cfg client = {.url = url,
		.ca_file = is_tls ? cfg->metrics.routers_ca_file : NULL,
		.cert_file = is_tls ? cfg->security.cert_file : NULL,
		.key_file = is_tls ? cfg->security.key_file : NULL,
		.max_conns = 8,
		.connect_timeout = CONNECT_TIMEOUT};
	CGN_TRY(l != NULL ? webclient_open(l, &client, &to->url, &to->client, err)
			  : webclient_check(&client, err));
	r->n++;
	return CGN_OK;
}

static CGN_RC entries_take(struct cgn_loop *l, const struct config *cfg, struct routers *r,
	struct cgn_err *err)
{
	for (size_t i = 0; i < cfg->metrics.routers.n; i++)
		CGN_TRY(cgn_err_of(entry_take(l, cfg, cfg->metrics.routers.v[i], r, err), "metrics.routers",
			err));
	return CGN_OK;
}

CGN_RC routers_check(const struct config *cfg, struct cgn_err *err)
{
	struct routers *r = CGN_NEW(struct routers);
	cgn_rc rc = entries_take(NULL, cfg, r, err);
	free(r);
	return rc;
}

CGN_RC routers_open(struct cgn_loop *l, const struct config *cfg, struct routers **out, struct cgn_err *err)
{
	struct routers *r = CGN_NEW(struct routers);
	r->tag = ROUTERS_TAG;
	cgn_rc rc = entries_take(l, cfg, r, err);
	if (cgn_ok(rc))
		*out = r;
	else
		routers_close(&r);
	return rc;
}

void routers_close(struct routers **take)
{
	struct routers *r = CGN_TAKE_LIVE(take, ROUTERS_TAG);
	if (r == NULL)
		return;
	for (size_t i = 0; i < r->n; i++)
		http_client_free(&r->one[i].client);
	r->tag = 0;
	free(r);
}

/* ---- answers ---- */

void routers_fill(const struct routers *r, struct pb_tree *t, Cognitora__V1__Routers *to)
{
	CGN_LIVE(r, ROUTERS_TAG);
	for (size_t i = 0; i < r->n; i++) {
		Cognitora__V1__RouterAddress *one = PB_ADD(t, to, routers, router_address);
		one->name = pb_text(r->one[i].name);
		one->address = pb_text(r->one[i].url.authority);
	}
}

/* Find the router of /routers/NAME/PATH; |*path| is "PATH?QUERY". */
static const struct routers_one *router_find(const struct routers *r, struct cgn_str path,
	struct cgn_str *rest)
{
	char plain[3 * NAME_BYTES];
	*rest = (struct cgn_str){path.p + strlen("/routers/"), path.n - strlen("/routers/")};
	struct cgn_str name = cgn_str_split(rest, '/');
	if (name.n > sizeof plain || rest->p == NULL)
		return NULL;
	name = (struct cgn_str){plain, percent_get(plain, name)};
	for (size_t i = 0; i < r->n; i++)
		if (cgn_str_is(name, r->one[i].name))
			return &r->one[i];
	return NULL;
}

/* The paths that the page asks for, with what the router itself asks of a caller: a path that ends with "/" stands for all
 * behind it. The router sees the certificate of this program, so the caller's own permission is checked here. */
static const struct relayed {
	const char *path;
	bool posts;
	enum identity_action action;
} relayed[] = {{"nodes", false, ACTION_STATUS_READ}, {"models", false, ACTION_STATUS_READ},
	{"queue", false, ACTION_STATUS_READ}, {"index", false, ACTION_STATUS_READ},
	{"history", false, ACTION_STATUS_READ}, {"explain", false, ACTION_EXPLAIN_READ},
	{"explain/", false, ACTION_EXPLAIN_READ}, {"metrics", false, ACTION_METRICS_READ},
	{"nodes/", true, ACTION_NODE_CORDON}, {"playground/v1/", true, ACTION_PLAYGROUND_USE}};

static const struct relayed *relayed_find(struct cgn_str rest, bool posts)
{
	struct cgn_str path = cgn_str_split(&rest, '?');
	for (size_t i = 0; i < CGN_COUNT(relayed); i++) {
		const char *is = relayed[i].path;
		bool fits = is[strlen(is) - 1] == '/' ? cgn_str_starts(path, is) : cgn_str_is(path, is);
		if (fits && relayed[i].posts == posts)
			return &relayed[i];
	}
	return NULL;
}

/* May the caller do this at the router? False: the refusal is written. */
static bool relay_may(const struct relayed *what, struct cgn_str rest, struct svc_admin_reply *reply)
{
	char plain[3 * NAME_BYTES];
	struct cgn_str node = {0};
	if (what->action == ACTION_NODE_CORDON) {
		(void)cgn_str_split(&rest, '/');
		node = cgn_str_split(&rest, '/');
		if (node.n > sizeof plain) {
			svc_admin_error(reply, 404, "no_node", "no node has so long a name");
			return false;
		}
		node = (struct cgn_str){plain, percent_get(plain, node)};
	}
	return svc_admin_may(reply, what->action, node);
}

static CGN_RC relay_send(const struct routers_one *to, const struct http_head *h, struct cgn_str rest,
	struct cgn_str body, struct svc_admin_reply *reply, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.limit = PATH_MOST};
	struct cgn_str key = http_head_get(h, "x-api-key");
	bool is_post = cgn_str_is(h->method, "POST"), plays = cgn_str_starts(rest, "playground/");
	const struct http_field fields[] = {{CGN_STR("accept"), CGN_STR("*/*")},
		{CGN_STR("x-cgn-page"), CGN_STR("1")}, {CGN_STR("content-type"), CGN_STR("application/json")},
		{CGN_STR("x-api-key"), key}};
	const struct iovec iov = {(void *)(uintptr_t)body.p, body.n}; /* Only read. */
	cgn_buf_fmt(&path, "%s/%.*s", to->url.base, CGN_STR_ARG(rest));
	const struct http_request rq = {.method = is_post ? "POST" : "GET",
		.path = cgn_buf_z(&path),
		.fields = fields,
		.n_fields = !is_post ? 1
			: key.n > 0  ? 4
				     : 3,
		.body_len = (int64_t)body.n,
		/* An answer of the playground takes as long as the model does. */
		.head_timeout = plays ? 0 : ANSWER_TIMEOUT,
		.idle_timeout = plays ? 0 : ANSWER_TIMEOUT,
		.body = body.n > 0 ? &iov : NULL,
		.n_body = body.n > 0};
	if (path.bad)
		return CGN_FAIL(err, TOO_LARGE, "the path is longer than %d bytes", PATH_MOST);
	return adminrelay_start(reply, to->client, &rq, "router_away", err);
}

void routers_relay(struct routers *r, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	struct cgn_err err;
	struct cgn_str rest;
	CGN_LIVE(r, ROUTERS_TAG);
	const struct routers_one *to = router_find(r, h->path, &rest);
	bool is_post = cgn_str_is(h->method, "POST");
	const struct relayed *what = to != NULL ? relayed_find(rest, is_post) : NULL;
	if (to == NULL) {
		svc_admin_error(reply, 404, "no_router", "metrics.routers has no router of this name");
	} else if (what == NULL) {
		svc_admin_error(reply, 404, "not_found",
			"only what the page asks for is relayed to routers; ask the router itself");
	} else if ((!is_post || svc_admin_may_change(h, reply)) && relay_may(what, rest, reply)) {
		cgn_rc rc = relay_send(to, h, rest, body, reply, &err);
		if (!cgn_ok(rc))
			svc_admin_error(reply, cgn_code_http(rc.code), "router_away", err.msg);
	}
}
