/* SPDX-License-Identifier: Apache-2.0 */
/* probe: asks the running program, at the admin address of the same configuration, how it is. For health checks of
 * containers, which have no shell and no curl. */
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "io/net/pki/pki.h"
#include "io/os/disk/disk.h"
#include "joint/daemon/svc/svc_priv.h"

#define PROBE_TIMEOUT (3 * CGN_SEC) /* From the start to the answer's end. */
#define PROBE_ANSWER  ((size_t)64 << 10)
#define PEM_LIMIT     ((size_t)4 << 20)
#define ADDRESS_MAX   300

struct probe {
	struct cgn_loop *loop;
	struct cgn_timer timer;
	struct http_call *call; /* NULL: it has ended. */
	const char *addr;
	int status;
	struct cgn_buf body;
	struct cgn_err end;
};

static void probe_head(struct http_call *c, void *user, const struct http_head *h)
{
	struct probe *p = user;
	(void)c;
	p->status = h->status;
}

static void probe_body(struct http_call *c, void *user, const uint8_t *bytes, size_t n)
{
	struct probe *p = user;
	(void)c;
	cgn_buf_add(&p->body, bytes, n);
}

static void probe_end(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	struct probe *p = user;
	(void)c;
	(void)trailers;
	(void)n;
	p->call = NULL;
	cgn_loop_stop(p->loop);
}

static void probe_fail(struct http_call *c, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	struct probe *p = user;
	(void)c;
	(void)stage;
	p->call = NULL;
	(void)CGN_FAIL_AS(&p->end, why->code, "no answer: %.350s; does the program run, with these settings?",
		why->msg);
	cgn_loop_stop(p->loop);
}

static void probe_late(struct cgn_timer *t)
{
	struct probe *p = CGN_CONTAINER(t, struct probe, timer);
	(void)CGN_FAIL(&p->end, DEADLINE,
		"no answer at %s within %d s: the program hangs, is stopped, or has too little CPU", p->addr,
		(int)(PROBE_TIMEOUT / CGN_SEC));
	http_call_cancel(&p->call);
	cgn_loop_stop(p->loop);
}

/* Write the address at which this machine reaches |listen|: a wildcard is reached by the loopback address. */
static CGN_RC probe_address(const char *key, const char *listen, char out[ADDRESS_MAX], struct cgn_err *err)
{
	const char *port = listen != NULL ? strrchr(listen, ':') : NULL;
	if (port == NULL || listen[0] == '\0')
		return CGN_FAIL(err, INVALID, "%s is not set: there is no port to ask", key);
	size_t host = (size_t)(port - listen);
	bool any4 = host == 0 || (host == 7 && strncmp(listen, "0.0.0.0", host) == 0);
	bool any6 = host == 4 && strncmp(listen, "[::]", host) == 0;
	if (strcmp(port, ":0") == 0)
		return CGN_FAIL(err, INVALID, "%s is %.200s: with port 0 nobody knows which port to ask", key,
			listen);
	if (any4 || any6)
		(void)snprintf(out, ADDRESS_MAX, "%s%s", any4 ? "127.0.0.1" : "[::1]", port);
	else
		(void)snprintf(out, ADDRESS_MAX, "%s", listen);
	return CGN_OK;
}

/* Make the context for an admin port with TLS; NULL in |*out|: it has none. The certificate that the program shows is that of
 * its own settings, so that its name is known: |name| gets it. */
static CGN_RC probe_tls(const struct config *cfg, const char *listen, char name[256], struct tls_ctx **out,
	struct cgn_err *err)
{
	static const char *const alpn[] = {"http/1.1", NULL};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf pem = {.n = 0};
	struct pki_info info;
	if (identity_is_local(cgn_str_of(listen)) || cfg->security.cert_file == NULL)
		return CGN_OK;
	CGN_TRY(disk_read_file(cfg->security.cert_file, PEM_LIMIT, &pem, err));
	CGN_TRY(pki_inspect(cgn_buf_view(&pem), &info, err));
	const char *own = info.subject;
	for (size_t i = info.n_names; i > 0; i--)
		if (strstr(info.names[i - 1], "://") == NULL)
			own = info.names[i - 1];
	(void)snprintf(name, 256, "%s", own);
	const struct tls_cfg tls = {.ca_file = cfg->security.ca_file,
		.pin = cfg->security.ca_file == NULL ? info.fingerprint : NULL,
		.alpn = alpn};
	return tls_ctx_new(&tls, out, err);
}

static CGN_RC probe_ask(struct probe *p, const char *path, const char *name, struct tls_ctx *tls,
	struct cgn_err *err)
{
	static const struct http_call_ops ops = {.on_head = probe_head,
		.on_body = probe_body,
		.on_end = probe_end,
		.on_fail = probe_fail};
	const struct http_client_cfg client = {.addr = p->addr,
		.tls = tls,
		.server_name = tls != NULL ? name : NULL,
		.proto = HTTP_1,
		.max_conns = 1};
	const struct http_request rq = {.method = "GET", .path = path};
	struct http_client *c = NULL;
	CGN_TRY(http_client_new(p->loop, &client, &c, err));
	cgn_timer_init(&p->timer, p->loop, probe_late);
	cgn_timer_set(&p->timer, PROBE_TIMEOUT);
	cgn_rc rc = http_call_start(c, &rq, &ops, p, &p->call, err);
	if (cgn_ok(rc))
		cgn_loop_run(p->loop);
	cgn_timer_cancel(&p->timer);
	http_client_free(&c);
	if (cgn_ok(rc) && p->end.code != CGN_FINE) {
		*err = p->end;
		rc = CGN_RC_OF(err->code);
	}
	return rc;
}

/* Fail for an answer other than 200, with its reason where it has one. */
static CGN_RC probe_verdict(const struct probe *p, const char *path, struct cgn_err *err)
{
	struct cgn_arena a;
	struct json_val v;
	if (p->status == 200)
		return CGN_OK;
	cgn_arena_init(&a, PROBE_ANSWER);
	struct cgn_str why = {.n = 0};
	if (cgn_ok(json_parse(cgn_buf_view(&p->body), &v, NULL, NULL)))
		why = json_get_str(v, "why", &a);
	cgn_rc rc = p->status == 503
		? CGN_FAIL(err, UNAVAILABLE, "not ready: %.*s", why.n > 0 ? (int)why.n : 16,
			  why.n > 0 ? why.p : "no reason given.")
		: CGN_FAIL(err, UNAVAILABLE, "%s answers %s with %d: is another program at this address?",
			  p->addr, path, p->status);
	cgn_arena_fini(&a);
	return rc;
}

CGN_RC svc_probe(const struct svc_program *program, const struct config *cfg, const char *what,
	struct cgn_err *err)
{
	const char *path = strcmp(what, "ready") == 0 ? "/readyz" : "/healthz";
	const char *listen = program->admin.addr != NULL ? program->admin.addr(cfg) : NULL;
	struct probe p = {.body = {.limit = PROBE_ANSWER}};
	struct tls_ctx *tls = NULL;
	char addr[ADDRESS_MAX], name[256] = "";
	CGN_TRY(probe_address(program->admin.key, listen, addr, err));
	CGN_TRY(probe_tls(cfg, listen, name, &tls, err));
	p.addr = addr;
	cgn_rc rc = cgn_loop_new(&p.loop, err);
	if (cgn_ok(rc)) {
		rc = probe_ask(&p, path, name, tls, err);
		cgn_loop_close(&p.loop);
	}
	tls_ctx_free(&tls);
	if (cgn_ok(rc))
		rc = probe_verdict(&p, path, err);
	cgn_buf_fini(&p.body);
	return rc;
}
