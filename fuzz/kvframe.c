/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz kvframe: a stream's frames are the same for any cuts (the first byte chooses them), and every frame
 * that can be read can be written again. */
#include <stdlib.h>

#include "policy/kv/kvframe/kvframe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void again_answer(struct cgn_str payload, struct cgn_buf *b)
{
	struct kvframe_answer a;
	if (!cgn_ok(kvframe_read_answer(payload, &a, NULL)))
		return;
	CGN_MUST(a.offset + a.length <= a.size);
	kvframe_put_answer(b, &a);
}

static void again_holds(struct cgn_str payload, struct cgn_buf *b)
{
	static struct kvframe_hold list[KVFRAME_MAX_HOLDS];
	struct kvframe_holds h;
	if (!cgn_ok(kvframe_read_holds(payload, &h, NULL)))
		return;
	for (size_t i = 0; i < h.n; i++)
		list[i] = kvframe_hold_at(&h, i);
	kvframe_put_holds(b, &h, list, h.n);
}

static void frame_rewrite(const struct kvframe *f, struct cgn_buf *b)
{
	struct kvframe_fetch fetch;
	struct kvframe_who who;
	switch (f->type) {
	case KVFRAME_FETCH:
		if (cgn_ok(kvframe_read_fetch(f->payload, &fetch, NULL)))
			kvframe_put_fetch(b, &fetch);
		break;
	case KVFRAME_ANSWER:
		again_answer(f->payload, b);
		break;
	case KVFRAME_SUBSCRIBE:
	case KVFRAME_HELLO:
		if (cgn_ok(kvframe_read_who(f->payload, &who, NULL)))
			kvframe_put_who(b, f->type, &who);
		break;
	case KVFRAME_HOLDS:
		again_holds(f->payload, b);
		break;
	}
}

static bool frames_read(struct kvframe_in *in, struct cgn_str rest, struct cgn_buf *seen)
{
	struct kvframe f;
	bool got = true;
	while (got) {
		if (!cgn_ok(kvframe_next(in, &rest, &f, &got, NULL)))
			return false;
		if (got)
			frame_rewrite(&f, seen);
	}
	CGN_MUST(rest.n == 0);
	return true;
}

static void stream_scan(struct cgn_str bytes, size_t step, struct cgn_buf *seen)
{
	struct kvframe_in in;
	bool fine = true;
	kvframe_in_init(&in);
	for (size_t at = 0; fine && at < bytes.n; at += step) {
		struct cgn_str part = {bytes.p + at, bytes.n - at < step ? bytes.n - at : step};
		char *chunk = cgn_str_dupz(part); /* A block of its own, freed after the call. */
		CGN_MUST(chunk != NULL);
		fine = frames_read(&in, (struct cgn_str){chunk, part.n}, seen);
		free(chunk);
	}
	CGN_MUST(in.buf.n <= KVFRAME_HEAD + KVFRAME_MAX);
	kvframe_in_fini(&in);
}

/* Check that a rewritten frame reads the same. */
static void rewrite_check(struct cgn_str written)
{
	struct cgn_buf twice = {.n = 0};
	stream_scan(written, written.n, &twice);
	CGN_MUST(cgn_str_eq(written, cgn_buf_view(&twice)));
	cgn_buf_fini(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	if (n < 2)
		return 0;
	struct cgn_buf whole = {0}, parts = {0};
	struct cgn_str bytes = {(const char *)data + 1, n - 1};
	stream_scan(bytes, bytes.n, &whole);
	stream_scan(bytes, (size_t)data[0] + 1, &parts);
	CGN_MUST(cgn_str_eq(cgn_buf_view(&whole), cgn_buf_view(&parts)));
	if (whole.n > 0)
		rewrite_check(cgn_buf_view(&whole));
	cgn_buf_fini(&whole);
	cgn_buf_fini(&parts);
	return 0;
}
