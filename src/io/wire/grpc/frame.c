/* SPDX-License-Identifier: Apache-2.0 */
/* frame: length-prefixed messages. A message that arrives in one piece is not copied. */
#include "io/wire/grpc/grpc_priv.h"

static uint32_t length_get(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void bytes_take(struct cgn_str *in, size_t n)
{
	in->p += n;
	in->n -= n;
}

static enum grpc_frame_step frame_bad(cgn_rc rc)
{
	CGN_MUST(!cgn_ok(rc));
	return GRPC_FRAME_BAD;
}

void grpc_budget_add(struct grpc_budget *b, uint64_t n)
{
	b->used += n;
}

void grpc_budget_return(struct grpc_budget *b, uint64_t n)
{
	CGN_MUST(n <= b->used);
	b->used -= n;
}

void grpc_frames_unbook(struct grpc_frames *f)
{
	if (f->booked > 0)
		grpc_budget_return(f->budget, f->booked);
	f->booked = 0;
}

/* Book the message that begins, and reserve its memory: a peer with a budget is trusted not to lie. */
static CGN_RC frame_book(struct grpc_frames *f, struct cgn_err *err)
{
	struct grpc_budget *b = f->budget;
	if (b == NULL)
		return CGN_OK;
	grpc_frames_unbook(f);
	if (b->used + f->need > b->limit) {
		b->refused++;
		return CGN_FAIL(err, OVERLOADED,
			"no room for a message of %u bytes: %llu of %llu bytes are in use (%s)", f->need,
			(unsigned long long)b->used, (unsigned long long)b->limit, b->setting);
	}
	f->booked = f->need;
	grpc_budget_add(b, f->need);
	return CGN_OK;
}

static CGN_RC check_prefix(struct grpc_frames *f, struct cgn_err *err)
{
	f->need = length_get(f->prefix + 1);
	if (f->prefix[0] == 1)
		return CGN_FAIL(err, UNSUPPORTED,
			"compressed messages are not taken here, send them with grpc-encoding identity");
	if (f->prefix[0] != 0)
		return CGN_FAIL(err, INVALID, "a message begins with %u, which is not a compression flag",
			(unsigned)f->prefix[0]);
	if (f->need > f->max_message)
		return CGN_FAIL(err, OVERLOADED, "a message of %u bytes, at most %u are taken", f->need,
			f->max_message);
	return frame_book(f, err);
}

enum grpc_frame_step grpc_frame_next(struct grpc_frames *f, struct cgn_str *in, struct cgn_str *out,
	struct cgn_err *err)
{
	if (f->n_prefix == GRPC_PREFIX && f->part.n == f->need &&
		f->part.n > 0) { /* The last message was lent from |part|. */
		f->n_prefix = 0;
		f->part.n = 0;
		cgn_buf_fini(
			&f->part); /* Messages of a long call come one by one: keep no memory between them. */
	}
	while (f->n_prefix < GRPC_PREFIX) {
		if (in->n == 0)
			return GRPC_FRAME_MORE;
		f->prefix[f->n_prefix++] = (uint8_t)in->p[0];
		bytes_take(in, 1);
		if (f->n_prefix == GRPC_PREFIX) {
			cgn_rc rc = check_prefix(f, err);
			if (!cgn_ok(rc))
				return frame_bad(rc);
		}
	}
	if (f->part.n == 0 && in->n >= f->need) {
		*out = (struct cgn_str){in->p, f->need};
		bytes_take(in, f->need);
		f->n_prefix = 0;
		return GRPC_FRAME_MESSAGE;
	}
	size_t n = f->need - f->part.n < in->n ? f->need - f->part.n : in->n;
	if (f->budget != NULL)
		(void)cgn_buf_room(&f->part, f->need - f->part.n);
	cgn_buf_add(&f->part, in->p, n);
	bytes_take(in, n);
	if (f->part.bad)
		return frame_bad(CGN_FAIL(err, NO_MEMORY, "no memory for a message of %u bytes", f->need));
	*out = cgn_buf_view(&f->part);
	return f->part.n == f->need ? GRPC_FRAME_MESSAGE : GRPC_FRAME_MORE;
}

bool grpc_frame_between(const struct grpc_frames *f)
{
	return f->n_prefix == 0 || (f->n_prefix == GRPC_PREFIX && f->part.n == f->need && f->part.n > 0);
}

void grpc_frame_prefix(uint8_t to[GRPC_PREFIX], size_t n)
{
	CGN_MUST(n <= UINT32_MAX);
	to[0] = 0;
	for (unsigned i = 0; i < 4; i++)
		to[1 + i] = (uint8_t)(n >> (24 - 8 * i));
}

void grpc_frames_fini(struct grpc_frames *f)
{
	grpc_frames_unbook(f);
	cgn_buf_fini(&f->part);
}
