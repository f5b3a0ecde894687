/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz resp: a whole value stays whole whatever follows, is never whole with a byte less, and is the same
 * after writing and reading again. */
#include <stdlib.h>

#include "base/core/err.h"
#include "base/resp/resp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void bulks_come_back(struct cgn_str s)
{
	struct cgn_buf b = {0};
	struct resp_value v;
	const char *why;
	resp_put_array(&b, 1);
	resp_put_bulk(&b, s);
	struct cgn_str rest = cgn_buf_view(&b);
	CGN_MUST(resp_take(&rest, &v, &why) == RESP_GOT && v.type == RESP_ARRAY && v.n == 1);
	CGN_MUST(resp_take(&rest, &v, &why) == RESP_GOT && v.type == RESP_BULK && cgn_str_eq(v.text, s) &&
		rest.n == 0);
	cgn_buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_str bytes = {(const char *)data, n}, rest = bytes;
	struct resp_value v;
	const char *why = NULL;
	size_t len = 0, again = 0;
	while (resp_take(&rest, &v, &why) == RESP_GOT)
		if (v.text.n > 0)
			CGN_MUST(v.text.p > bytes.p && v.text.p + v.text.n <= bytes.p + n);
	enum resp_outcome o = resp_whole(bytes, &len, &why);
	CGN_MUST(o == RESP_GOT || why != NULL);
	if (o == RESP_GOT) {
		CGN_MUST(len > 0 && len <= n);
		CGN_MUST(
			resp_whole((struct cgn_str){bytes.p, len}, &again, &why) == RESP_GOT && again == len);
		CGN_MUST(resp_whole((struct cgn_str){bytes.p, len - 1}, &again, &why) != RESP_GOT);
	}
	bulks_come_back(bytes);
	return 0;
}
