/* SPDX-License-Identifier: Apache-2.0 */
/* The input is one answer, and in halves two. An answer is the same as itself, unless it cannot be compared. */
#include <math.h>

#include "policy/answer/cascade/compare.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct cgn_str whole = {(const char *)p, n}, a = {whole.p, n / 2}, b = {whole.p + n / 2, n - n / 2};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = {0};
	struct json_val v;
	(void)cascade_compare(a, b);
	CGN_MUST(cascade_compare(whole, whole) != CASCADE_DIFFERENT);
	cascade_judge_body(a, b, CGN_STR("m"), &body);
	CGN_MUST(body.bad || cgn_ok(json_parse(cgn_buf_view(&body), &v, NULL, NULL)));
	double cosine = cascade_similarity(whole);
	CGN_MUST(isnan(cosine) || fabs(cosine) < 1.0001);
	if (cgn_ok(json_parse(whole, &v, NULL, NULL)) && v.type == JSON_OBJECT) {
		cgn_buf_fini(&body);
		cascade_double_body(PROMPT_CHAT, v, CGN_STR("m"), true, &body);
		CGN_MUST(body.bad || cgn_ok(json_parse(cgn_buf_view(&body), &v, NULL, NULL)));
	}
	return 0;
}
