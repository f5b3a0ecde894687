/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz cascade: a small model's answer. Its log-probabilities give numbers that are in bounds, and the rest
 * without them does not depend on how the bytes are cut; a valid document stays valid. The first byte chooses
 * the cuts and the engine's habit. */
#include <stdlib.h>

#include "base/core/err.h"
#include "policy/answer/cascade/cascade.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void strip_all(struct cgn_str text, enum cascade_blank blank, bool events, size_t step,
	struct cgn_buf *out)
{
	struct cascade_strip s;
	cascade_strip_init(&s, blank, events);
	for (size_t at = 0; at < text.n; at += step) {
		struct cgn_str part = {text.p + at, text.n - at < step ? text.n - at : step};
		char *chunk = malloc(part.n);
		CGN_MUST(chunk != NULL);
		memcpy(chunk, part.p, part.n);
		cascade_strip_feed(&s, (struct cgn_str){chunk, part.n}, out);
		free(chunk);
	}
	cascade_strip_end(&s, out);
}

static void check_strip(struct cgn_str text, enum cascade_blank blank, bool events, size_t step)
{
	struct cgn_buf whole = {0}, cut = {0};
	struct json_val v;
	strip_all(text, blank, events, text.n + 1, &whole);
	strip_all(text, blank, events, step, &cut);
	CGN_MUST(cgn_str_eq(cgn_buf_view(&whole), cgn_buf_view(&cut)));
	if (!events && cgn_ok(json_parse(text, &v, NULL, NULL)))
		CGN_MUST(cgn_ok(json_parse(cgn_buf_view(&whole), &v, NULL, NULL)));
	cgn_buf_fini(&whole);
	cgn_buf_fini(&cut);
}

static void check_body(struct cgn_str text)
{
	struct json_val body, again;
	bool own;
	if (!cgn_ok(json_parse(text, &body, NULL, NULL)) || body.type != JSON_OBJECT ||
		!json_get(body, "model", &again))
		return;
	for (enum prompt_api api = PROMPT_CHAT; api <= PROMPT_COMPLETIONS; api++) {
		struct cgn_buf out = {0};
		if (cascade_passes(api, body, false, &own) != NULL || own)
			continue;
		cascade_body(api, text, body, &out);
		CGN_MUST(cgn_ok(json_parse(cgn_buf_view(&out), &again, NULL, NULL)));
		cgn_buf_fini(&out);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cascade_answer a;
	if (n < 1)
		return 0;
	struct cgn_str text = {(const char *)data + 1, n - 1};
	size_t step = (size_t)data[0] % 16 + 1;
	for (int events = 0; events < 2; events++) {
		check_strip(text, CASCADE_BLANK_NULL, events != 0, step);
		check_strip(text, CASCADE_BLANK_GONE, events != 0, step);
		cascade_answer_init(&a, 1 + data[0] % CASCADE_TOKENS_MAX);
		if (events != 0)
			cascade_answer_feed(&a, text);
		else
			cascade_answer_document(&a, text);
		CGN_MUST(a.n <= a.most && a.n <= a.seen);
		CGN_MUST(cascade_confidence(&a) <= 0 && cascade_doubt(&a) >= 0 && cascade_doubt(&a) <= 1);
		cascade_answer_fini(&a);
	}
	check_body(text);
	return 0;
}
