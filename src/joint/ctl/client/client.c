/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/ctl/client/client.h"

#include <stdlib.h>
#include <string.h>

#include "base/pb/pb.h"
#include "io/net/tls/tls.h"
#include "io/os/loop/loop.h"
#include "io/wire/grpc/grpc.h"
#include "joint/ctl/context/context.h"
#include "policy/answer/tracing/tracing.h"

#define STORE_MAX_ANSWER ((uint32_t)16 << 20)

static const struct server {
	const char *service, *name, *flags;
	uint32_t max_message;
	bool wide;
	const char *role; /* tls_cfg.peer_uri */
} servers[] = {
	[CTL_ROUTER] = {"cognitora.v1.Control", "router", "--router", 0, false, "/router/"},
	[CTL_STORE] = {"cognitora.v1.Kv", "block store", "--uds or --addr", STORE_MAX_ANSWER, true, NULL},
	[CTL_JOIN] = {"cognitora.v1.Join", "router", "cgn-ctl node invite --address", 0, false, "/router/"},
};

struct ctl_client {
	const struct server *server;
	struct cgn_loop *loop;
	struct tls_ctx *tls;
	struct grpc_channel *channel;
	struct grpc_call *call;
	char addr[300], context[80]; /* |context|: its name; empty: none is in use. */
	const struct ctl_call *now;
	bool sent_all, wrong_type;
	struct cgn_err end;
};

/* ---- the connection ---- */

static const char *flag_or(const struct ctl_args *a, const char *flag, const char *fallback)
{
	const char *given = ctl_flag(a, flag);
	return given != NULL ? given : fallback;
}

CGN_RC ctl_crl_check(const struct tls_cfg *files, struct cgn_err *err)
{
	if (files->crl_file == NULL || files->ca_file != NULL)
		return CGN_OK;
	return CGN_FAIL(err, INVALID, "--crl %.300s needs --ca: the CA says whose list it is",
		files->crl_file);
}

/* Flags beat the context |x| (NULL: none), whose certificates are not for Unix sockets. */
static CGN_RC client_tls(const struct ctl_args *a, const struct context *x, const char *role,
	struct tls_ctx **out, struct cgn_err *err)
{
	static const char *const alpn[] = {"h2", NULL};
	const struct tls_cfg cfg = {.ca_file = flag_or(a, "--ca", x != NULL ? x->value[CONTEXT_CA] : NULL),
		.cert_file = flag_or(a, "--cert", x != NULL ? x->value[CONTEXT_CERT] : NULL),
		.key_file = flag_or(a, "--key", x != NULL ? x->value[CONTEXT_KEY] : NULL),
		.crl_file = flag_or(a, "--crl", x != NULL ? x->value[CONTEXT_CRL] : NULL),
		.peer_uri = role,
		.peer_uri_of = "cognitora://",
		.alpn = alpn};
	CGN_TRY(ctl_crl_check(&cfg, err));
	if (cfg.ca_file == NULL && cfg.cert_file == NULL && cfg.key_file == NULL)
		return CGN_OK;
	if ((cfg.cert_file == NULL) != (cfg.key_file == NULL))
		return CGN_FAIL(err, INVALID, "--cert and --key go together");
	return tls_ctx_new(&cfg, out, err);
}

/* Write the first of flag, environment and default into |out|, as far as it fits. */
static void pick_address(const char *flag, const char *variable, const char *fallback, char out[300])
{
	const char *env = getenv(variable);
	const char *addr = flag != NULL ? flag : env != NULL && env[0] != '\0' ? env : fallback;
	(void)snprintf(out, 300, "%s", addr);
}

static CGN_RC find_address(const struct ctl_args *a, enum ctl_server server, const struct context *x,
	char out[300], struct cgn_err *err)
{
	const char *router = x != NULL ? x->value[CONTEXT_ROUTER] : NULL,
		   *kv = x != NULL ? x->value[CONTEXT_KV] : NULL;
	if (server == CTL_ROUTER) {
		pick_address(ctl_flag(a, "--router"), "CGN_ROUTER",
			router != NULL ? router : "127.0.0.1:9090", out);
		return CGN_OK;
	}
	const char *uds = ctl_flag(a, "--uds"), *addr = ctl_flag(a, "--addr");
	if (uds != NULL && addr != NULL)
		return CGN_FAIL(err, INVALID, "--uds and --addr cannot be given together");
	if (uds != NULL)
		(void)snprintf(out, 300, "unix:%s", uds);
	else
		pick_address(addr, "CGN_KV", kv != NULL ? kv : "unix:/run/cognitora/kv.sock", out);
	return CGN_OK;
}

/* Return $TRACEPARENT, by which a script continues its trace; NULL when it is unset or not valid. */
static const char *trace_of_caller(void)
{
	static const struct tracing_rules all = {.sampler = TRACING_ALL, .parent_decides = true};
	static const uint64_t none[3] = {1, 1, 1};
	const char *text = getenv("TRACEPARENT");
	struct tracing_context c;
	if (text == NULL)
		return NULL;
	tracing_begin(&all, cgn_str_of(text), none, &c);
	return c.parent != 0 ? text : NULL;
}

static CGN_RC client_connect(struct ctl_client *c, struct cgn_err *err)
{
	CGN_TRY(cgn_loop_new(&c->loop, err));
	const struct grpc_channel_cfg cfg = {.addr = c->addr,
		.tls = c->tls,
		.max_message = c->server->max_message,
		.wide = c->server->wide,
		.traceparent = trace_of_caller()};
	return grpc_channel_new(c->loop, &cfg, &c->channel, err);
}

CGN_RC ctl_router_address(const struct ctl_args *a, char out[300], struct cgn_err *err)
{
	CGN_ON_EXIT(contexts_free) struct contexts *contexts = NULL;
	const struct context *x = NULL;
	const char *named = context_named(a);
	if (named == NULL || named[0] != '\0') {
		CGN_TRY(contexts_load(&contexts, err));
		CGN_TRY(context_in_use(a, contexts, &x, err));
	}
	return find_address(a, CTL_ROUTER, x, out, err);
}

CGN_RC ctl_client_open(const struct ctl_args *a, enum ctl_server server, struct ctl_client **out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(ctl_client_close) struct ctl_client *c = CGN_NEW(struct ctl_client);
	c->server = &servers[server];
	CGN_ON_EXIT(contexts_free) struct contexts *contexts = NULL;
	const struct context *x = NULL;
	const char *named = context_named(a);
	if (named == NULL || named[0] != '\0') { /* A broken file does not stop those who want none. */
		CGN_TRY(contexts_load(&contexts, err));
		CGN_TRY(context_in_use(a, contexts, &x, err));
	}
	CGN_TRY(find_address(a, server, x, c->addr, err));
	CGN_TRY(client_tls(a, strncmp(c->addr, "unix:", 5) != 0 ? x : NULL, c->server->role, &c->tls, err));
	if (x != NULL)
		(void)cgn_str_copyz(c->context, sizeof c->context, cgn_str_of(x->name));
	CGN_TRY(client_connect(c, err));
	*out = CGN_TAKE(&c);
	return CGN_OK;
}

void ctl_client_close(struct ctl_client **take)
{
	struct ctl_client *c = CGN_TAKE(take);
	if (c == NULL)
		return;
	if (c->channel != NULL)
		grpc_channel_free(&c->channel);
	cgn_loop_close(&c->loop);
	if (c->tls != NULL)
		tls_ctx_free(&c->tls);
	free(c);
}

/* ---- a call ---- */

static void send_requests(struct ctl_client *c)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	while (!c->sent_all && c->call != NULL && !grpc_over_mark(c->call)) {
		b.n = 0;
		c->sent_all = c->now->request != NULL;
		if (c->now->request != NULL)
			pb_pack(c->now->request, &b);
		else if (!c->now->next(c->now->user, &b)) {
			c->sent_all = true;
			grpc_half_close(c->call);
			return;
		}
		const struct iovec iov = {b.p, b.n};
		grpc_send(c->call, &iov, 1);
		if (c->sent_all)
			grpc_half_close(c->call);
	}
}

static void on_drain(struct grpc_call *call, void *user)
{
	(void)call;
	send_requests(user);
}

static void call_stop(struct ctl_client *c)
{
	grpc_cancel(&c->call);
	cgn_loop_stop(c->loop);
}

static void on_message(struct grpc_call *call, void *user, const uint8_t *p, size_t n)
{
	struct ctl_client *c = user;
	void *m = NULL;
	struct cgn_err why;
	(void)call;
	if (c->now->answer == NULL)
		return;
	if (!cgn_ok(pb_unpack(c->now->answer, (struct cgn_str){(const char *)p, n}, &m, &why))) {
		c->wrong_type = true;
		call_stop(c);
		return;
	}
	if (c->now->first != NULL && *(void **)c->now->first == NULL) {
		*(void **)c->now->first = m;
		return;
	}
	if (c->now->on_answer != NULL)
		c->now->on_answer(c->now->user, m);
	pb_free(&m);
	if (c->now->enough != NULL && c->now->enough(c->now->user))
		call_stop(c);
}

static void on_close(struct grpc_call *call, void *user, const struct cgn_err *why)
{
	struct ctl_client *c = user;
	(void)call;
	c->end = *why;
	c->call = NULL;
	cgn_loop_stop(c->loop);
}

static CGN_RC fail_type(const struct ctl_client *c, struct cgn_err *err)
{
	return CGN_FAIL(err, BAD_GATEWAY,
		"the answer of the %s at %s is not of type %s; is it of another version?", c->server->name,
		c->addr, c->now->answer->short_name);
}

CGN_RC ctl_client_run(struct ctl_client *c, const struct ctl_call *call, struct cgn_err *err)
{
	static const struct grpc_call_ops ops = {.on_message = on_message,
		.on_drain = on_drain,
		.on_close = on_close};
	char path[128];
	(void)snprintf(path, sizeof path, "/%s/%s", c->server->service, call->method);
	c->now = call;
	c->sent_all = c->wrong_type = false;
	c->end = (struct cgn_err){.code = CGN_FINE};
	CGN_TRY(grpc_call_start(c->channel, path, call->timeout, &ops, c, &c->call, err));
	send_requests(c);
	cgn_loop_run(c->loop);
	if (c->wrong_type)
		return fail_type(c, err);
	if (c->end.code == CGN_FINE)
		return CGN_OK;
	bool clear = c->tls == NULL && strncmp(c->addr, "unix:", 5) != 0;
	if (c->end.code == CGN_UNAVAILABLE || c->end.code == CGN_DEADLINE)
		return CGN_FAIL_AS(err, c->end.code,
			"the %s at %s%s%s does not answer: %.250s; name another with %s%s", c->server->name,
			c->addr, c->context[0] != '\0' ? " of context " : "", c->context, c->end.msg,
			c->server->flags, clear ? ", or give --ca if it speaks TLS" : "");
	*err = c->end;
	return CGN_RC_OF(c->end.code);
}

CGN_RC ctl_client_call(const struct ctl_args *a, enum ctl_server server, const struct ctl_call *call,
	struct cgn_err *err)
{
	CGN_ON_EXIT(ctl_client_close) struct ctl_client *c = NULL;
	CGN_TRY(ctl_client_open(a, server, &c, err));
	CGN_TRY(ctl_client_run(c, call, err));
	return call->first == NULL || *(void **)call->first != NULL ? CGN_OK : fail_type(c, err);
}

CGN_RC ctl_client_join(const char *addr, const struct tls_cfg *tls, const struct ctl_call *call,
	struct cgn_err *err)
{
	CGN_ON_EXIT(ctl_client_close) struct ctl_client *c = CGN_NEW(struct ctl_client);
	c->server = &servers[CTL_JOIN];
	(void)cgn_str_copyz(c->addr, sizeof c->addr, cgn_str_of(addr));
	CGN_TRY(tls_ctx_new(tls, &c->tls, err));
	CGN_TRY(client_connect(c, err));
	CGN_TRY(ctl_client_run(c, call, err));
	return call->first == NULL || *(void **)call->first != NULL ? CGN_OK : fail_type(c, err);
}

CGN_RC ctl_timeout(const struct ctl_args *a, cgn_nsec fallback, cgn_nsec *out, struct cgn_err *err)
{
	*out = fallback;
	return ctl_flag(a, "--timeout") != NULL ? ctl_flag_duration(a, "--timeout", out, err) : CGN_OK;
}
