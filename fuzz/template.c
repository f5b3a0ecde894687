/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz template: a template and, after a zero byte, the messages; rendering stays within its bounds and gives
 * the same each time. */
#include "policy/text/template/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define MAX_OUTPUT 65536

static void render_once(const struct template *t, const struct template_ask *ask, struct cgn_buf *out)
{
	struct cgn_err err = {0};
	cgn_buf_putz(out, "before");
	cgn_rc rc = template_render(t, ask, out, &err);
	CGN_MUST(out->n >= 6 && out->n <= 6 + MAX_OUTPUT && !out->bad);
	CGN_MUST(cgn_ok(rc) || out->n == 6);
	CGN_MUST(cgn_ok(rc) || (rc.code == err.code && err.msg[0] != '\0') || rc.code == CGN_INVALID);
	CGN_MUST(cgn_ok(rc) || rc.code == CGN_INVALID || rc.code == CGN_TOO_LARGE);
}

static void render_twice(const struct template *t, struct json_val doc)
{
	struct cgn_buf first = {0}, second = {0};
	struct template_ask ask = {.messages = doc,
		.tools = doc,
		.kwargs = doc.type == JSON_OBJECT ? doc : (struct json_val){JSON_NULL, {NULL, 0}},
		.bos_token = CGN_STR("<s>"),
		.now = 1722000000,
		.max_output = MAX_OUTPUT,
		.max_steps = 50000,
		.max_memory = 1 << 20};
	struct json_val none;
	CGN_MUST(cgn_ok(json_parse(CGN_STR("[]"), &none, NULL, NULL)));
	if (doc.type != JSON_ARRAY)
		ask.messages = none;
	ask.add_generation_prompt = doc.raw.n % 2 == 0;
	ask.continue_final_message = doc.raw.n % 3 == 1;
	render_once(t, &ask, &first);
	render_once(t, &ask, &second);
	CGN_MUST(cgn_str_eq(cgn_buf_view(&first), cgn_buf_view(&second)));
	cgn_buf_fini(&first);
	cgn_buf_fini(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	const uint8_t *zero = n > 0 ? memchr(data, 0, n) : NULL;
	struct cgn_str source = {(const char *)data, zero != NULL ? (size_t)(zero - data) : n};
	struct cgn_str text =
		zero != NULL ? (struct cgn_str){(const char *)zero + 1, n - source.n - 1} : CGN_STR("[]");
	struct template *t = NULL;
	struct json_val doc;
	struct cgn_err err = {0};
	cgn_rc rc = template_compile(source, &t, &err);
	CGN_MUST(cgn_ok(rc) || (rc.code == CGN_INVALID && err.msg[0] != '\0'));
	if (cgn_ok(rc) && cgn_ok(json_parse(text, &doc, NULL, NULL)))
		render_twice(t, doc);
	template_free(&t);
	return 0;
}
