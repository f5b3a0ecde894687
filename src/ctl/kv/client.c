/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/kv/client.h"

#include <stdlib.h>
#include <string.h>

#include "base/codec/codec.h"
#include "base/pb/pb.h"
#include "ctl/client.h"
#include "io/grpc/grpc.h"
#include "io/loop/loop.h"
#include "policy/block/tier.h"
#include "policy/proto/proto.h"
#include "policy/respcmd/respcmd.h"

#define DEFAULT_UDS "/run/cognitora/kv.sock"
#define MAX_ANSWER  ((uint32_t)16 << 20)

struct kv_ctl {
	struct cgn_loop *loop;
	struct tls_ctx *tls;
	struct grpc_channel *channel;
	struct grpc_call *call;
	char addr[300];
	cgn_nsec timeout;
	const struct kv_ctl_call *now;
	bool said_all;
	struct cgn_err end;
};

/* ---- where it is ---- */
static void address(const struct ctl_args *a, struct kv_ctl *k)
{
	const char *uds = ctl_flag(a, "--uds"), *addr = ctl_flag(a, "--addr"), *env = getenv("CGN_KV");
	if (uds == NULL && addr == NULL && env != NULL && env[0] != '\0')
		addr = env;
	if (addr != NULL)
		(void)cgn_str_copyz(k->addr, sizeof k->addr, cgn_str_of(addr));
	else
		(void)snprintf(k->addr, sizeof k->addr, "unix:%s", uds != NULL ? uds : DEFAULT_UDS);
}

CGN_RC kv_ctl_open(const struct ctl_args *a, struct kv_ctl **out, struct cgn_err *err)
{
	CGN_ON_EXIT(kv_ctl_close) struct kv_ctl *k = calloc(1, sizeof *k);
	if (k == NULL)
		return CGN_FAIL(err, NO_MEMORY, "out of memory");
	if (ctl_flag(a, "--uds") != NULL && ctl_flag(a, "--addr") != NULL)
		return CGN_FAIL(err, INVALID, "--uds and --addr: one of them");
	address(a, k);
	CGN_TRY(ctl_flag_duration(a, "--timeout", &k->timeout, err));
	CGN_TRY(ctl_client_tls(a, &k->tls, err));
	CGN_TRY(cgn_loop_new(&k->loop, err));
	const struct grpc_channel_cfg cfg = {.addr = k->addr,
		.tls = k->tls,
		.max_message = MAX_ANSWER,
		.wide = true};
	CGN_TRY(grpc_channel_new(k->loop, &cfg, &k->channel, err));
	*out = k;
	k = NULL;
	return CGN_OK;
}

void kv_ctl_close(struct kv_ctl **take)
{
	struct kv_ctl *k = *take;
	*take = NULL;
	if (k == NULL)
		return;
	if (k->channel != NULL)
		grpc_channel_free(&k->channel);
	if (k->loop != NULL) {
		cgn_loop_stop(k->loop);
		cgn_loop_run(k->loop); /* lets what is closing close */
		cgn_loop_free(&k->loop);
	}
	tls_ctx_free(&k->tls);
	free(k);
}

/* ---- a call ---- */
static void say(struct kv_ctl *k)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	while (!k->said_all && k->call != NULL && !grpc_over_mark(k->call)) {
		b.n = 0;
		if (k->now->request != NULL)
			pb_pack(k->now->request, &b);
		if (k->now->request == NULL && !k->now->next(k->now->user, &b)) {
			k->said_all = true;
			grpc_half_close(k->call);
			return;
		}
		const struct iovec iov = {b.p, b.n};
		grpc_send(k->call, &iov, 1);
		if (k->now->request != NULL) {
			k->said_all = true;
			grpc_half_close(k->call);
		}
	}
}

static void on_drain(struct grpc_call *call, void *user)
{
	(void)call;
	say(user);
}

static void on_message(struct grpc_call *call, void *user, const uint8_t *p, size_t n)
{
	struct kv_ctl *k = user;
	void *m = NULL;
	(void)call;
	if (!cgn_ok(pb_unpack(k->now->answer, (struct cgn_str){(const char *)p, n}, &m, &k->end))) {
		grpc_cancel(&k->call);
		cgn_loop_stop(k->loop);
		return;
	}
	k->now->on_answer(k->now->user, m);
	pb_free(&m);
	if (k->now->enough == NULL || !k->now->enough(k->now->user))
		return;
	grpc_cancel(&k->call);
	cgn_loop_stop(k->loop);
}

static void on_close(struct grpc_call *call, void *user, const struct cgn_err *why)
{
	struct kv_ctl *k = user;
	(void)call;
	k->end = *why;
	k->call = NULL;
	cgn_loop_stop(k->loop);
}

CGN_RC kv_ctl_run(struct kv_ctl *k, const struct kv_ctl_call *call, struct cgn_err *err)
{
	static const struct grpc_call_ops ops = {.on_message = on_message,
		.on_drain = on_drain,
		.on_close = on_close};
	char path[128];
	(void)snprintf(path, sizeof path, PROTO_KV "%s", call->method);
	k->now = call;
	k->said_all = false;
	k->end = (struct cgn_err){.code = CGN_FINE};
	CGN_TRY(grpc_call_start(k->channel, path, call->forever ? 0 : k->timeout, &ops, k, &k->call, err));
	say(k);
	cgn_loop_run(k->loop);
	if (k->end.code == CGN_FINE)
		return CGN_OK;
	if (k->end.code == CGN_UNAVAILABLE || k->end.code == CGN_DEADLINE)
		return CGN_FAIL_AS(err, k->end.code,
			"the block store at %s does not answer: %.250s; name another with --uds or --addr%s",
			k->addr, k->end.msg,
			k->tls != NULL || strncmp(k->addr, "unix:", 5) == 0
				? ""
				: ", or give --ca if it speaks TLS");
	*err = k->end;
	return CGN_RC_OF(k->end.code);
}

/* ---- texts ---- */
void kv_ctl_key(const char *word, struct kv_ctl_key *out)
{
	struct cgn_str text = cgn_str_of(word);
	bool is_digest = respcmd_key(text, &out->key.digest, &out->key.segment);
	out->name = is_digest ? (struct cgn_str){NULL, 0} : text;
	cognitora__v1__kv_key__init(&out->m);
	out->m.digest = (ProtobufCBinaryData){DIGEST_BYTES, out->key.digest.b};
	out->m.segment = out->key.segment;
}

void kv_ctl_key_text(const Cognitora__V1__KvKey *k, struct cgn_buf *out)
{
	if (k == NULL)
		return;
	hex_put(out, (struct cgn_str){(const char *)k->digest.data, k->digest.len});
	if (k->segment != 0)
		cgn_buf_fmt(out, ":%u", k->segment);
}

const char *kv_ctl_tiers(uint32_t tiers)
{
	static const char *const texts[] = {"", "ram", "ssd", "ram,ssd", "remote", "ram,remote", "ssd,remote",
		"ram,ssd,remote"};
	return texts[tiers >> BLOCK_RAM & 7];
}
