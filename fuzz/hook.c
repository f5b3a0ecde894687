/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz hook: no answer of a hook breaks its reading, only a plain yes allows, and a document stays JSON whatever the
 * body. The first byte chooses the status and the form of the body. */
#include "policy/answer/hook/hook.h"
#include "base/core/err.h"
#include "base/json/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_answer(int status, struct cgn_str body)
{
	struct hook_verdict v;
	hook_answer_read(status, body, &v);
	CGN_MUST(v.decision != HOOK_ALLOWED || status == 200 || status == 204);
	CGN_MUST(v.decision != HOOK_FAILED || v.why != NULL);
	if (v.decision != HOOK_REFUSED)
		return;
	CGN_MUST(v.status >= 400 && v.status < 500 && v.code[0] != '\0' && v.message[0] != '\0');
	CGN_MUST(cgn_utf8_valid(v.message, strlen(v.message)));
	for (const char *p = v.message; *p != '\0'; p++)
		CGN_MUST((unsigned char)*p >= ' ' && *p != 0x7f);
}

static void check_question(enum hook_body form, struct cgn_str body)
{
	struct cgn_buf b = {0};
	struct json_val v, from;
	const struct hook_question q = {.hook = "after",
		.id = body,
		.method = body,
		.path = body,
		.model = body,
		.kind = "key",
		.name = body,
		.from = CGN_STR("here"),
		.status = 200,
		.type = body,
		.form = form,
		.body = body};
	hook_question_open(&b, &q);
	hook_question_close(&b, q.form, q.body);
	/* A body that is nested as deep as the parser goes is one level deeper in the document. */
	if (cgn_ok(json_parse(cgn_buf_view(&b), &v, NULL, NULL)))
		CGN_MUST(json_get(v, "from", &from) && cgn_str_is(from.raw, "\"here\""));
	else
		CGN_MUST(memchr(body.p, '[', body.n) != NULL || memchr(body.p, '{', body.n) != NULL);
	cgn_buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const int statuses[] = {200, 204, 400, 403, 429, 500};
	static const enum hook_body forms[] = {HOOK_NO_BODY, HOOK_JSON, HOOK_EVENTS, HOOK_LINES, HOOK_BYTES};
	if (n == 0)
		return 0;
	struct cgn_str body = {(const char *)data + 1, n - 1};
	check_answer(statuses[data[0] % CGN_COUNT(statuses)], body);
	check_question(forms[data[0] / 8 % CGN_COUNT(forms)], body);
	return 0;
}
