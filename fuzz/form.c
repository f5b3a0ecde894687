/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes are a form whose values lie in the body, or are refused. The first line is the Content-Type. */
#include "base/form/form.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_str rest = {(const char *)data, n}, type = cgn_str_split(&rest, '\n');
	struct form_field fields[] = {{.name = "model"}, {.name = "stream"}};
	struct cgn_str boundary = form_boundary(type);
	if (boundary.p == NULL || rest.p == NULL)
		return 0;
	if (!cgn_ok(form_find(rest, boundary, fields, CGN_COUNT(fields), NULL)))
		return 0;
	for (size_t i = 0; i < CGN_COUNT(fields); i++) {
		struct cgn_str v = fields[i].value;
		CGN_MUST((fields[i].times == 0) == (v.p == NULL));
		CGN_MUST(v.p == NULL || (v.p >= rest.p && v.p + v.n <= rest.p + rest.n));
	}
	return 0;
}
