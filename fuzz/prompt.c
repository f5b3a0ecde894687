/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz prompt: any body is read in every shape or refused with a reason, the messages of a chat are JSON, and
 * any template has a format. The first byte chooses API and format, the rest is the body. */
#include <stdlib.h>

#include "policy/text/prompt/prompt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void prompt_check(const struct prompt *p)
{
	struct json_val again;
	if (p->kind != PROMPT_IS_CHAT)
		return;
	/* Arguments that were a string may be nested deeper than a document allows, so only the brackets are
	 * checked then. */
	CGN_MUST(p->messages.raw.p[0] == '[' && p->messages.raw.p[p->messages.raw.n - 1] == ']');
	struct cgn_err err = {0};
	bool sound = cgn_ok(json_parse(p->messages.raw, &again, NULL, &err));
	CGN_MUST(sound || strstr(err.msg, "deep") != NULL);
	if (p->tools.raw.p != NULL)
		CGN_MUST(cgn_ok(json_parse(p->tools.raw, &again, NULL, &err)) ||
			strstr(err.msg, "deep") != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct json_val body;
	struct prompt *p = malloc(sizeof *p);
	const char *lacks = NULL;
	if (p == NULL || n < 1) {
		free(p);
		return 0;
	}
	struct cgn_str text = {(const char *)data + 1, n - 1};
	const struct prompt_ask ask = {.api = (enum prompt_api)(1 + data[0] % 5),
		.format = (enum prompt_format)(data[0] / 5 % 3),
		.max_ids = 64};
	(void)prompt_format_of(text);
	if (cgn_ok(json_parse(text, &body, NULL, NULL)) && body.type == JSON_OBJECT) {
		if (prompt_read(&ask, body, p, &lacks))
			prompt_check(p);
		else
			CGN_MUST(lacks != NULL);
		prompt_fini(p);
	}
	free(p);
	return 0;
}
