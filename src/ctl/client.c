/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/client.h"

#include <stdlib.h>

#include "io/grpc/grpc.h"
#include "io/loop/loop.h"
#include "io/tls/tls.h"

struct ctl_client {
	struct cgn_loop *loop;
	struct tls_ctx *tls;
	struct grpc_channel *channel;
	const char *addr;
	void (*on_answer)(void *user, const uint8_t *p, size_t n);
	void *user;
	struct cgn_err end;
};

CGN_RC ctl_client_tls(const struct ctl_args *a, struct tls_ctx **out, struct cgn_err *err)
{
	static const char *const alpn[] = {"h2", NULL};
	const struct tls_cfg cfg = {.ca_file = ctl_flag(a, "--ca"),
		.cert_file = ctl_flag(a, "--cert"),
		.key_file = ctl_flag(a, "--key"),
		.alpn = alpn};
	if (cfg.ca_file == NULL && cfg.cert_file == NULL && cfg.key_file == NULL)
		return CGN_OK;
	if ((cfg.cert_file == NULL) != (cfg.key_file == NULL))
		return CGN_FAIL(err, INVALID, "--cert and --key go together");
	return tls_ctx_new(&cfg, out, err);
}

CGN_RC ctl_client_open(const struct ctl_args *a, struct ctl_client **out, struct cgn_err *err)
{
	CGN_ON_EXIT(ctl_client_close) struct ctl_client *c = calloc(1, sizeof *c);
	if (c == NULL)
		return CGN_FAIL(err, NO_MEMORY, "out of memory");
	const char *from_env = getenv("CGN_ROUTER");
	c->addr = ctl_flag(a, "--router");
	if (c->addr == NULL)
		c->addr = from_env != NULL && from_env[0] != '\0' ? from_env : "127.0.0.1:9090";
	CGN_TRY(cgn_loop_new(&c->loop, err));
	CGN_TRY(ctl_client_tls(a, &c->tls, err));
	const struct grpc_channel_cfg cfg = {.addr = c->addr, .tls = c->tls};
	CGN_TRY(grpc_channel_new(c->loop, &cfg, &c->channel, err));
	*out = c;
	c = NULL;
	return CGN_OK;
}

void ctl_client_close(struct ctl_client **take)
{
	struct ctl_client *c = *take;
	*take = NULL;
	if (c == NULL)
		return;
	if (c->channel != NULL)
		grpc_channel_free(&c->channel);
	if (c->loop != NULL) {
		cgn_loop_stop(c->loop);
		cgn_loop_run(c->loop); /* lets what is closing close */
		cgn_loop_free(&c->loop);
	}
	if (c->tls != NULL)
		tls_ctx_free(&c->tls);
	free(c);
}

static void on_message(struct grpc_call *call, void *user, const uint8_t *p, size_t n)
{
	(void)call;
	struct ctl_client *c = user;
	c->on_answer(c->user, p, n);
}

static void on_close(struct grpc_call *call, void *user, const struct cgn_err *why)
{
	(void)call;
	struct ctl_client *c = user;
	c->end = *why;
	cgn_loop_stop(c->loop);
}

CGN_RC ctl_client_call(struct ctl_client *c, const char *method, const ProtobufCMessage *request,
	cgn_nsec timeout, void (*on_answer)(void *user, const uint8_t *p, size_t n), void *user,
	struct cgn_err *err)
{
	static const struct grpc_call_ops ops = {.on_message = on_message, .on_close = on_close};
	uint8_t packed[1024]; /* requests of Control hold a node's name at most */
	char path[128];
	size_t n = protobuf_c_message_get_packed_size(request);
	if (n > sizeof packed)
		return CGN_FAIL(err, INVALID, "the name is too long");
	(void)protobuf_c_message_pack(request, packed);
	(void)snprintf(path, sizeof path, "/cognitora.v1.Control/%s", method);
	c->on_answer = on_answer;
	c->user = user;
	struct grpc_call *call = NULL;
	CGN_TRY(grpc_call_start(c->channel, path, timeout, &ops, c, &call, err));
	const struct iovec iov = {packed, n};
	grpc_send(call, &iov, 1);
	grpc_half_close(call);
	cgn_loop_run(c->loop);
	if (c->end.code == CGN_FINE)
		return CGN_OK;
	if (c->end.code == CGN_UNAVAILABLE || c->end.code == CGN_DEADLINE)
		return CGN_FAIL_AS(err, c->end.code,
			"the router at %s does not answer: %.250s; name another with --router%s", c->addr,
			c->end.msg, c->tls != NULL ? "" : ", or give --ca if it speaks TLS");
	*err = c->end;
	return CGN_RC_OF(c->end.code);
}
