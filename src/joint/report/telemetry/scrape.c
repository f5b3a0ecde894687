/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/report/telemetry/scrape.h"

#include "base/pb/pb.h"
#include "cognitora/v1/metrics.pb-c.h"

/* The request is empty. */
static void on_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	(void)user;
	(void)p;
	(void)n;
}

static void on_half_close(struct grpc_call *c, void *user)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf packed = {0};
	Cognitora__V1__ScrapeResponse rs = COGNITORA__V1__SCRAPE_RESPONSE__INIT;
	telemetry_text(user, &text);
	(void)cgn_buf_z(&text); /* the NUL that protobuf-c reads to */
	rs.text = text.p;
	rs.taken_unix_ms = cgn_clock_wall_ms();
	if (!text.bad)
		pb_pack(&rs, &packed);
	if (text.bad || packed.bad) {
		grpc_finish(c, CGN_NO_MEMORY, "out of memory");
		return;
	}
	const struct iovec iov = {packed.p, packed.n};
	grpc_send(c, &iov, 1);
	grpc_finish(c, CGN_FINE, "");
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)user;
	(void)why;
}

void scrape_answer(struct grpc_call *c, struct telemetry *t)
{
	static const struct grpc_call_ops ops = {.on_message = on_message,
		.on_half_close = on_half_close,
		.on_close = on_close};
	grpc_call_take(c, &ops, t);
}
