/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz document: any bytes as a policy document; an accepted document must be the same after writing and
 * reading again. */
#include "policy/route/routing/document.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct route_document d, again;
	struct cgn_err err;
	struct cgn_buf text = {.n = 0};
	if (!cgn_ok(route_document_read((struct cgn_str){(const char *)p, n}, &d, &err))) {
		CGN_MUST(err.msg[0] != '\0');
		return 0;
	}
	route_document_write(&d, &text);
	CGN_MUST(cgn_ok(route_document_read(cgn_buf_view(&text), &again, &err)));
	CGN_MUST(again.has_policy == d.has_policy && again.has_weights == d.has_weights);
	CGN_MUST(!d.has_policy || again.policy == d.policy);
	CGN_MUST(!d.has_weights || memcmp(&again.weights, &d.weights, sizeof d.weights) == 0);
	cgn_buf_fini(&text);
	return 0;
}
