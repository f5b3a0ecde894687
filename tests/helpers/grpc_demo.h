/* SPDX-License-Identifier: Apache-2.0 */
/* The Echo service of echo.proto, for tests. Counters record its calls. */
#pragma once
#include <stdio.h>
#include <stdlib.h>

#include "base/pb/pb.h"
#include "echo.pb-c.h"
#include "io/wire/grpc/grpc.h"

struct demo {
	struct cgn_loop *l;
	struct grpc_server *server;
	unsigned calls, fine, cancelled, expired, other, drains, half_closes;
	struct grpc_call *last; /* The Bidi call, while it is open. */
	bool pause_bidi;        /* Pause after each message; the test resumes |last|. */
};

enum demo_kind { DEMO_UNARY, DEMO_DOWN, DEMO_UP, DEMO_BIDI, DEMO_STATS };
struct demo_job {
	struct demo *demo;
	struct grpc_call *c;
	enum demo_kind kind;
	Test__EchoRequest *rq;
	uint32_t seq;
	uint64_t total;
	struct cgn_timer delay;
};

static void demo_reply(struct demo_job *j, const char *text, uint32_t size)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	Test__EchoReply r = TEST__ECHO_REPLY__INIT;
	char *copy = cgn_str_dupz(cgn_str_of(text));
	r.text = copy;
	r.seq = j->seq;
	r.total = j->total;
	r.blob = (ProtobufCBinaryData){size, calloc(1, size + 1)};
	CGN_MUST(copy != NULL && r.blob.data != NULL);
	pb_pack(&r, &b);
	CGN_MUST(!b.bad);
	grpc_send(j->c, &(struct iovec){b.p, b.n}, 1);
	free(r.blob.data);
	free(copy);
}

/* Send as much as the client takes; the rest follows when there is room. */
static void demo_pump(struct demo_job *j)
{
	while (j->seq < j->rq->count && !grpc_over_mark(j->c)) {
		j->seq++;
		demo_reply(j, j->rq->text, j->rq->size);
	}
	if (j->seq == j->rq->count)
		grpc_finish(j->c, CGN_FINE, NULL);
}

static void demo_answer(struct demo_job *j)
{
	if (j->rq->fail != 0) {
		grpc_finish(j->c, cgn_code_from_grpc((int)j->rq->fail), j->rq->text);
		return;
	}
	if (j->kind == DEMO_DOWN) {
		demo_pump(j);
		return;
	}
	if (j->kind == DEMO_STATS)
		j->seq = j->demo->cancelled + j->demo->expired;
	demo_reply(j, j->rq->text, j->rq->size);
	grpc_finish(j->c, CGN_FINE, NULL);
}

static void demo_delayed(struct cgn_timer *t)
{
	demo_answer(CGN_CONTAINER(t, struct demo_job, delay));
}

static void demo_one(struct demo_job *j)
{
	if (j->rq->delay_ms != 0)
		cgn_timer_set(&j->delay, j->rq->delay_ms * CGN_MSEC);
	else
		demo_answer(j);
}

static void demo_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct demo_job *j = user;
	pb_free(&j->rq);
	if (!cgn_ok(pb_unpack(&test__echo_request__descriptor, (struct cgn_str){(const char *)p, n}, &j->rq,
		    NULL))) {
		grpc_finish(c, CGN_INVALID, "no EchoRequest");
		return;
	}
	j->total += j->rq->blob.len;
	if (j->kind != DEMO_UP && j->kind != DEMO_BIDI) {
		demo_one(j);
		return;
	}
	j->seq++;
	if (j->kind == DEMO_BIDI)
		demo_reply(j, j->rq->text, j->rq->size);
	if (j->kind == DEMO_BIDI && j->demo->pause_bidi)
		grpc_pause(c);
}

static void demo_half_close(struct grpc_call *c, void *user)
{
	struct demo_job *j = user;
	j->demo->half_closes++;
	if (j->kind == DEMO_UP)
		demo_reply(j, "up", 0);
	if (j->kind == DEMO_UP || j->kind == DEMO_BIDI)
		grpc_finish(c, CGN_FINE, NULL);
}

static void demo_drain(struct grpc_call *c, void *user)
{
	struct demo_job *j = user;
	(void)c;
	j->demo->drains++;
	if (j->kind == DEMO_DOWN && j->rq != NULL)
		demo_pump(j);
}

static void demo_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct demo_job *j = user;
	struct demo *d = j->demo;
	if (why->code == CGN_FINE)
		d->fine++;
	else if (why->code == CGN_CANCELLED)
		d->cancelled++;
	else if (why->code == CGN_DEADLINE)
		d->expired++;
	else
		d->other++;
	if (d->last == c)
		d->last = NULL;
	cgn_timer_cancel(&j->delay);
	pb_free(&j->rq);
	free(j);
}

static const struct grpc_call_ops demo_ops = {
	.on_message = demo_message,
	.on_half_close = demo_half_close,
	.on_drain = demo_drain,
	.on_close = demo_close,
};

static void demo_take(struct grpc_call *c, struct demo *d, enum demo_kind kind)
{
	struct demo_job *j = calloc(1, sizeof *j);
	CGN_MUST(j != NULL);
	d->calls++;
	j->demo = d;
	j->c = c;
	j->kind = kind;
	cgn_timer_init(&j->delay, d->l, demo_delayed);
	if (kind == DEMO_BIDI)
		d->last = c;
	grpc_call_take(c, &demo_ops, j);
}

static void demo_unary(struct grpc_call *c, void *user)
{
	demo_take(c, user, DEMO_UNARY);
}

static void demo_down(struct grpc_call *c, void *user)
{
	demo_take(c, user, DEMO_DOWN);
}

static void demo_up(struct grpc_call *c, void *user)
{
	demo_take(c, user, DEMO_UP);
}

static void demo_bidi(struct grpc_call *c, void *user)
{
	demo_take(c, user, DEMO_BIDI);
}

static void demo_stats(struct grpc_call *c, void *user)
{
	demo_take(c, user, DEMO_STATS);
}

static const struct grpc_method demo_methods[] = {
	{"/test.Echo/Unary", demo_unary},
	{"/test.Echo/Down", demo_down},
	{"/test.Echo/Up", demo_up},
	{"/test.Echo/Bidi", demo_bidi},
	{"/test.Echo/Stats", demo_stats},
};

static CGN_RC demo_serve(struct demo *d, struct cgn_loop *l, const char *addr, struct tls_ctx *tls,
	struct cgn_err *err)
{
	const struct grpc_server_cfg cfg = {
		.listen = {.addr = addr, .tls = tls},
		.methods = demo_methods,
		.n_methods = CGN_COUNT(demo_methods),
		.health = true,
	};
	d->l = l;
	CGN_TRY(grpc_server_new(l, &cfg, d, &d->server, err));
	grpc_server_serving(d->server, true);
	return CGN_OK;
}
