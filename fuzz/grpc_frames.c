/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz grpc_frames: a byte stream cut in two different ways must give the same messages, or fail with the
 * same code. The first byte chooses the step. */
#include "io/wire/grpc/grpc_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum cgn_code frames_collect(struct cgn_str wire, size_t step, struct cgn_buf *out)
{
	struct grpc_frames f = {.max_message = 4096};
	struct cgn_err err = {.code = CGN_FINE};
	enum grpc_frame_step got = GRPC_FRAME_MORE;
	for (size_t at = 0; at < wire.n && got != GRPC_FRAME_BAD; at += step) {
		struct cgn_str in = {wire.p + at, wire.n - at < step ? wire.n - at : step}, message;
		while ((got = grpc_frame_next(&f, &in, &message, &err)) == GRPC_FRAME_MESSAGE) {
			CGN_MUST(message.n <= f.max_message);
			cgn_buf_fmt(out, "%zu:", message.n);
			cgn_buf_str(out, message);
		}
	}
	if (got != GRPC_FRAME_BAD)
		cgn_buf_char(out, grpc_frame_between(&f) ? '.' : '?');
	grpc_frames_fini(&f);
	return got == GRPC_FRAME_BAD ? err.code : CGN_FINE;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cgn_buf whole = {.n = 0}, pieces = {.n = 0};
	if (size < 2)
		return 0;
	struct cgn_str wire = {(const char *)data + 1, size - 1};
	enum cgn_code a = frames_collect(wire, wire.n, &whole),
		      b = frames_collect(wire, 1 + data[0] % 16, &pieces);
	CGN_MUST(a == b && cgn_str_eq(cgn_buf_view(&whole), cgn_buf_view(&pieces)));
	cgn_buf_fini(&whole);
	cgn_buf_fini(&pieces);
	return 0;
}
