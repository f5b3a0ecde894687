/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz resume: until an engine dies, the output equals the input and consists of whole events; afterwards,
 * for any input, the resuming body is JSON. The first byte chooses the cuts, the second where the first
 * engine dies. */
#include <stdlib.h>

#include "base/core/err.h"
#include "policy/answer/resume/resume.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void feed_resume(struct resume *s, struct cgn_str text, size_t step, struct cgn_buf *out)
{
	for (size_t at = 0; at < text.n; at += step) {
		struct cgn_str part = {text.p + at, text.n - at < step ? text.n - at : step};
		char *chunk = malloc(part.n);
		CGN_MUST(chunk != NULL);
		memcpy(chunk, part.p, part.n);
		resume_feed(s, (struct cgn_str){chunk, part.n}, out);
		free(chunk);
	}
}

static void go_on(struct resume *s, struct json_val body, struct cgn_str text, size_t step)
{
	const struct engine_resume *how =
		engine_resume_named(step % 2 > 0 ? CGN_STR("sim") : CGN_STR("prefill"));
	struct cgn_buf next = {0}, out = {0};
	struct json_val v = {0};
	if (resume_lost(s) != NULL || resume_need(s) != RESUME_NEEDS_ENGINE)
		return;
	resume_body(s, body, how, &next);
	CGN_MUST(!next.bad && cgn_ok(json_parse(cgn_buf_view(&next), &v, NULL, NULL)));
	CGN_MUST(resume_refusal(PROMPT_COMPLETIONS, v) == NULL);
	resume_begin(s, how);
	feed_resume(s, text, step, &out);
	resume_flush(s, &out);
	cgn_buf_fini(&next);
	cgn_buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const char asked[] =
		"{\"prompt\":\"p\",\"stream\":true,\"max_tokens\":5,\"stream_options\":{\"include_usage\":true}}";
	struct json_val body;
	if (n < 2)
		return 0;
	CGN_MUST(cgn_ok(json_parse(cgn_str_of(asked), &body, NULL, NULL)));
	struct cgn_str text = {(const char *)data + 2, n - 2};
	size_t step = (size_t)data[0] % 16 + 1, cut = (n - 2) * data[1] / 255;
	struct resume *s = resume_new(PROMPT_COMPLETIONS, body);
	struct cgn_buf out = {0};
	CGN_MUST(s != NULL);
	resume_begin(s, engine_resume_named(CGN_STR("sim")));
	feed_resume(s, (struct cgn_str){text.p, cut}, step, &out);
	CGN_MUST(out.n <= cut && memcmp(out.n > 0 ? out.p : "", text.p, out.n) == 0);
	CGN_MUST(out.n == cut || out.n == 0 || out.p[out.n - 1] == '\n' || out.p[out.n - 1] == '\r' ||
		resume_lost(s) != NULL);
	go_on(s, body, (struct cgn_str){text.p + cut, text.n - cut}, step);
	go_on(s, body, text, 17 - step);
	resume_free(&s);
	cgn_buf_fini(&out);
	return 0;
}
