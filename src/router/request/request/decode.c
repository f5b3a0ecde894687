/* SPDX-License-Identifier: Apache-2.0 */
/* decode: the text of a body that has a Content-Encoding. */
#include "base/json/json.h"
#include "router/request/request/request.h"

#define STEP_BYTES ((size_t)64 * 1024)
/* A coded body above this, or a text above GW_INLINE_BODY, is decoded on the thread pool: a coded body may stand for a
 * text that is a thousand times as large, which would hold up all other requests of the worker. The pool has few
 * threads, and a decoder lives only while one of them runs it, so decoders have at most that number times
 * CODING_MEMORY. */
#define INLINE_CODED ((size_t)64 * 1024)

struct gw_decoding {
	enum coding_kind kind;
	struct gw_body_bound bound;
	struct cgn_buf text;
	uint64_t booked;
	enum cgn_code code;
	struct cgn_err err;
	void (*then)(struct gw_req *r);
};

static void text_drop(struct gw_decoding *d)
{
	cgn_buf_fini(&d->text);
	atomic_fetch_sub_explicit(d->bound.used, d->booked, memory_order_relaxed);
	d->booked = 0;
}

void gw_body_decode_drop(struct gw_req *r)
{
	if (r->body.decoding != NULL)
		text_drop(r->body.decoding);
	r->body.decoding = NULL;
}

static enum cgn_code text_read(struct gw_decoding *d, struct coding *c, struct cgn_str in)
{
	char room[STEP_BYTES];
	enum cgn_code code = CGN_FINE;
	for (size_t n = sizeof room; n == sizeof room && code == CGN_FINE;) {
		code = coding_read(c, &in, room, sizeof room, &n, &d->err).code;
		if (code == CGN_FINE)
			code = gw_body_append(&d->bound, &d->text, &d->booked, (struct cgn_str){room, n});
	}
	return code == CGN_FINE ? coding_finish(c, &d->err).code : code;
}

/* Any thread. */
static void decode_run(struct gw_req *r)
{
	struct gw_decoding *d = r->body.decoding;
	struct coding *c = NULL;
	d->code = coding_open(d->kind, &c, &d->err).code;
	if (d->code == CGN_FINE)
		d->code = text_read(d, c, cgn_buf_view(&r->body.bytes));
	coding_close(&c);
	if (d->code == CGN_FINE)
		gw_body_fit(&d->bound, &d->text, &d->booked);
}

static void decode_refuse(struct gw_req *r, const struct gw_decoding *d)
{
	if (d->code == CGN_INVALID)
		(void)gw_refuse(r,
			&(struct gw_refusal){400, "invalid_request_error", "invalid_encoding",
				.reason = "invalid"},
			"%s", d->err.msg);
	else
		(void)gw_refuse_body(r, d->code);
}

/* Put the text in the place of the coded body. */
static void decode_end(struct gw_req *r)
{
	struct gw_decoding *d = r->body.decoding;
	if (d->code != CGN_FINE) {
		decode_refuse(r, d);
		gw_body_decode_drop(r);
		return;
	}
	gw_body_drop(r);
	r->body.bytes = d->text;
	r->body.booked = d->booked;
	r->body.coding = CODING_IDENTITY;
	r->body.decoding = NULL;
}

static void decode_then(struct gw_req *r)
{
	void (*then)(struct gw_req *) = r->body.decoding->then;
	decode_end(r);
	if (r->state == GW_ROUTE)
		then(r);
}

/* Decode a small body in the worker's turn. False: the thread pool shall do it. */
static bool decode_inline(struct gw_req *r, struct gw_decoding *d)
{
	const uint64_t most = d->bound.max_body;
	if (r->body.bytes.n > INLINE_CODED)
		return false;
	if (most > GW_INLINE_BODY)
		d->bound.max_body = GW_INLINE_BODY;
	decode_run(r);
	if (d->code != CGN_TOO_LARGE || d->bound.max_body == most)
		return true;
	d->bound.max_body = most;
	text_drop(d);
	return false;
}

static void bom_drop(struct gw_req *r)
{
	struct cgn_str all = cgn_buf_view(&r->body.bytes), text = json_skip_bom(all);
	if (text.n < all.n)
		cgn_buf_eat(&r->body.bytes, all.n - text.n);
}

bool gw_body_decode(struct gw_req *r, void (*then)(struct gw_req *r))
{
	if (r->body.coding == CODING_IDENTITY || r->body.bytes.n == 0) {
		bom_drop(r);
		return true;
	}
	struct gw_decoding *d = r->body.decoding = cgn_arena_zero(&r->arena, sizeof *d);
	if (d == NULL) {
		(void)gw_refuse_no_memory(r, "memory");
		return false;
	}
	*d = (struct gw_decoding){.kind = r->body.coding, .bound = gw_body_bound(r), .then = then};
	if (!decode_inline(r, d)) {
		gw_body_pool(r, decode_run, decode_then);
		return false;
	}
	decode_end(r);
	bom_drop(r);
	return r->state == GW_ROUTE;
}
