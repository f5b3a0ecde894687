/* SPDX-License-Identifier: Apache-2.0 */
/* A body of the selection API: a body that is read must make a body that reads as JSON. */
#include "policy/route/selection/selection.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct cgn_str text = {(const char *)data, size};
	struct selection_ask a;
	struct json_val whole;
	struct cgn_err err;
	if (!cgn_ok(selection_read(text, &a, &err)))
		return 0;
	selection_request(&a, &b);
	CGN_MUST(b.bad || cgn_ok(json_parse(cgn_buf_view(&b), &whole, NULL, &err)));
	(void)selection_allows(&a, size);
	CGN_MUST(a.id[0] == '\0' || selection_id_is_ok(cgn_str_of(a.id)));
	return 0;
}
