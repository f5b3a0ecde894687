/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz msgpack: walking value by value and skipping whole values end at the same place; every value that can
 * be read is the same after writing and reading again. */
#include <stdlib.h>

#include "base/core/err.h"
#include "base/msgpack/msgpack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Copy one head or scalar. Returns for a container how many values follow. */
static uint64_t copy_one(struct msgpack_in *in, struct cgn_buf *out)
{
	uint32_t count;
	switch (msgpack_peek(in)) {
	case MSGPACK_NIL:
		CGN_MUST(msgpack_get_nil(in));
		msgpack_put_nil(out);
		return 0;
	case MSGPACK_BOOL:
		cgn_buf_str(out, msgpack_get_raw(in));
		return 0;
	case MSGPACK_FLOAT:
		msgpack_put_f64(out, msgpack_get_f64(in));
		return 0;
	case MSGPACK_INT: {
		struct msgpack_in probe = *in;
		(void)msgpack_get_i64(&probe);
		if (msgpack_bad(&probe)) /* Over 63 bits, or cut short. */
			msgpack_put_u64(out, msgpack_get_u64(in));
		else
			msgpack_put_i64(out, msgpack_get_i64(in));
		return 0;
	}
	case MSGPACK_STR:
		msgpack_put_str(out, msgpack_get_str(in));
		return 0;
	case MSGPACK_BIN:
		msgpack_put_bin(out, msgpack_get_bin(in));
		return 0;
	case MSGPACK_ARRAY:
		count = msgpack_get_array(in);
		msgpack_put_array(out, count);
		return count;
	case MSGPACK_MAP:
		count = msgpack_get_map(in);
		msgpack_put_map(out, count);
		return 2 * (uint64_t)count;
	case MSGPACK_EXT:
	case MSGPACK_NONE:
		msgpack_skip(in);
		msgpack_put_nil(out);
		return 0;
	}
	return 0;
}

static void copy_value(struct msgpack_in *in, struct cgn_buf *out)
{
	for (uint64_t due = 1; due > 0 && !msgpack_bad(in); due--)
		due += copy_one(in, out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_str bytes = {(const char *)data, n};
	struct cgn_buf once = {0}, twice = {0};
	struct msgpack_in skipped = msgpack_in_of(bytes), walked = msgpack_in_of(bytes);
	msgpack_skip(&skipped);
	copy_value(&walked, &once);
	CGN_MUST(msgpack_bad(&skipped) == msgpack_bad(&walked));
	if (!msgpack_bad(&walked)) {
		struct msgpack_in again = msgpack_in_of(cgn_buf_view(&once));
		CGN_MUST(skipped.at == walked.at);
		copy_value(&again, &twice);
		CGN_MUST(msgpack_end(&again) && cgn_str_eq(cgn_buf_view(&once), cgn_buf_view(&twice)));
	}
	cgn_buf_fini(&once);
	cgn_buf_fini(&twice);
	return 0;
}
