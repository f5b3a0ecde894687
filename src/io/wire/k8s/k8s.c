/* SPDX-License-Identifier: Apache-2.0 */
/* k8s: the connection to the API server, and the start of requests. */
#include "io/wire/k8s/k8s.h"

#include <stdlib.h>

#include "base/core/utc.h"
#include "io/os/disk/disk.h"
#include "io/wire/k8s/k8s_priv.h"

#define TOKEN_AGE  (60 * CGN_SEC) /* The kubelet replaces a token long before its end. */
#define TLS_AGE    (10 * CGN_SEC)
#define TIMEOUT    (30 * CGN_SEC)
#define PING_EVERY (10 * CGN_SEC)
#define MAX_TOKEN  ((size_t)64 << 10)

/* Make "Bearer TOKEN" of the file or of the kubeconfig. A file that cannot be read leaves the last token. */
static CGN_RC bearer_read(struct k8s *k, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct cgn_str token = cgn_str_of(k->access.token);
	if (k->access.token_file != NULL) {
		CGN_TRY(disk_read_file(k->access.token_file, MAX_TOKEN, &text, err));
		token = cgn_buf_view(&text);
		while (token.n > 0 && (token.p[token.n - 1] == '\n' || token.p[token.n - 1] == '\r'))
			token.n--;
	}
	k->bearer.n = 0;
	if (token.n > 0)
		cgn_buf_fmt(&k->bearer, "Bearer %.*s", CGN_STR_ARG(token));
	return k->bearer.bad ? CGN_FAIL(err, NO_MEMORY, "no memory for the token") : CGN_OK;
}

static CGN_RC tls_open(const struct k8s_access *a, struct tls_ctx **out, struct cgn_err *err)
{
	static const char *const alpn[] = {"h2", "http/1.1", NULL};
	const struct tls_cfg tls = {.ca_file =
					    a->ca_file != NULL && a->ca_file[0] != '\0' ? a->ca_file : NULL,
		.cert_file = a->cert_file,
		.key_file = a->key_file,
		.alpn = alpn};
	return a->ca_file != NULL ? tls_ctx_new(&tls, out, err) : CGN_OK; /* NULL: the server has no TLS. */
}

CGN_RC k8s_check(const char *kubeconfig, struct cgn_err *err)
{
	struct k8s_access a;
	struct tls_ctx *tls = NULL;
	CGN_TRY(k8s_access_read(kubeconfig, &a, err));
	cgn_rc rc = tls_open(&a, &tls, err);
	tls_ctx_free(&tls);
	k8s_access_fini(&a);
	return rc;
}

static CGN_RC client_open(struct k8s *k, struct cgn_err *err)
{
	const struct k8s_access *a = &k->access;
	CGN_TRY(tls_open(a, &k->tls, err));
	const struct http_client_cfg cfg = {.addr = a->address,
		.tls = k->tls,
		.server_name = a->server_name,
		.ping_interval = PING_EVERY,
		.wide = true,
		.follow = true};
	return http_client_new(k->loop, &cfg, &k->http, err);
}

CGN_RC k8s_new(struct cgn_loop *l, const char *kubeconfig, struct k8s **out, struct cgn_err *err)
{
	CGN_ON_EXIT(k8s_free) struct k8s *k = CGN_NEW(struct k8s);
	*k = (struct k8s){.tag = K8S_TAG, .loop = l};
	CGN_TRY(k8s_access_read(kubeconfig, &k->access, err));
	CGN_TRY(bearer_read(k, err));
	k->token_read_at = cgn_loop_now(l);
	CGN_TRY(client_open(k, err));
	*out = CGN_TAKE(&k);
	return CGN_OK;
}

void k8s_free(struct k8s **take)
{
	struct k8s *k = CGN_TAKE_LIVE(take, K8S_TAG);
	if (k == NULL)
		return;
	CGN_MUST(k->users == 0);
	http_client_free(&k->http);
	tls_ctx_free(&k->tls);
	k8s_access_fini(&k->access);
	if (k->bearer.p != NULL)
		explicit_bzero(k->bearer.p, k->bearer.n);
	cgn_buf_fini(&k->bearer);
	k->tag = 0;
	free(k);
}

CGN_RC k8s_reload_tls(struct k8s *k, struct cgn_err *err)
{
	CGN_LIVE(k, K8S_TAG);
	return k->tls != NULL ? tls_ctx_reload(k->tls, err) : CGN_OK;
}

const char *k8s_namespace(const struct k8s *k)
{
	CGN_LIVE(k, K8S_TAG);
	return k->access.space;
}

void k8s_unreachable(struct k8s *k)
{
	cgn_nsec now = cgn_loop_now(k->loop);
	struct cgn_err err;
	if (k->tls == NULL || cgn_since(now, k->tls_read_at) < TLS_AGE)
		return;
	k->tls_read_at = now;
	/* The last authority stays; the caller reports the failure. */
	(void)cgn_ok(tls_ctx_reload(k->tls, &err));
}

CGN_RC k8s_start(struct k8s *k, const struct k8s_request *rq, cgn_nsec idle_timeout,
	const struct http_call_ops *ops, void *user, struct http_call **out, struct cgn_err *err)
{
	cgn_nsec now = cgn_loop_now(k->loop);
	CGN_LIVE(k, K8S_TAG);
	if (k->access.token_file != NULL && cgn_since(now, k->token_read_at) >= TOKEN_AGE) {
		k->token_read_at = now;
		CGN_TRY(bearer_read(k, err));
	}
	struct http_field fields[4] = {{CGN_STR("accept"), CGN_STR("application/json")},
		{CGN_STR("user-agent"), CGN_STR("cognitora/" CGN_VERSION)}};
	size_t n = 2;
	if (k->bearer.n > 0)
		fields[n++] = (struct http_field){CGN_STR("authorization"), cgn_buf_view(&k->bearer)};
	if (rq->body.n > 0)
		fields[n++] = (struct http_field){CGN_STR("content-type"),
			cgn_str_of(rq->type != NULL ? rq->type : "application/json")};
	const struct iovec body = {(void *)(uintptr_t)rq->body.p, rq->body.n};
	const struct http_request request = {.method = rq->method,
		.path = rq->path,
		.fields = fields,
		.n_fields = n,
		.body_len = (int64_t)rq->body.n,
		.body = rq->body.n > 0 ? &body : NULL,
		.n_body = rq->body.n > 0,
		.head_timeout = TIMEOUT,
		.idle_timeout = idle_timeout};
	return http_call_start(k->http, &request, ops, user, out, err);
}

/* ---- objects ---- */

struct cgn_str k8s_meta(struct json_val object, const char *name)
{
	struct json_val meta, v;
	if (!json_get(object, "metadata", &meta) || !json_get(meta, name, &v) || v.type != JSON_STRING)
		return (struct cgn_str){NULL, 0};
	return (struct cgn_str){v.raw.p + 1, v.raw.n - 2};
}

int64_t k8s_version(struct json_val object)
{
	uint64_t n;
	return cgn_str_u64(k8s_meta(object, "resourceVersion"), &n) && n <= INT64_MAX ? (int64_t)n : 0;
}

void k8s_time(uint64_t wall_ms, char out[K8S_TIME_BYTES])
{
	(void)cgn_utc_text((int64_t)(wall_ms / 1000), "%Y-%m-%dT%H:%M:%S", out, K8S_TIME_BYTES);
	size_t n = strlen(out);
	(void)snprintf(out + n, K8S_TIME_BYTES - n, ".%03u000Z", (unsigned)(wall_ms % 1000));
}
