/* SPDX-License-Identifier: Apache-2.0 */
/* A body of Ollama's API becomes JSON for an engine or is refused; whatever an engine answers becomes lines of
 * JSON objects, or one object. The first byte chooses. */
#include <stdlib.h>

#include "policy/answer/ollama/ollama.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void object_check(struct cgn_str text)
{
	struct json_val v;
	CGN_MUST(cgn_ok(json_parse(text, &v, NULL, NULL)) && v.type == JSON_OBJECT);
}

static void request_try(enum ollama_api api, struct cgn_str text)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	struct ollama_request rq;
	struct json_val body;
	struct cgn_err err;
	if (!cgn_ok(json_parse(text, &body, NULL, NULL)) || body.type != JSON_OBJECT)
		return;
	if (!cgn_ok(ollama_request_read(api, body, CGN_STR("m\"x"), &rq, &out, &err)) || rq.loads)
		return;
	/* A schema is deeper in the engine's body, which may then be deeper than a document allows. */
	bool sound = cgn_ok(json_parse(cgn_buf_view(&out), &body, NULL, &err)) && body.type == JSON_OBJECT;
	CGN_MUST(sound || strstr(err.msg, "deep") != NULL);
}

static void lines_check(struct cgn_str text)
{
	while (text.n > 0) {
		struct cgn_str line = cgn_str_split(&text, '\n');
		object_check(line);
		if (text.p == NULL)
			return;
	}
}

static void answer_try(enum ollama_api api, bool stream, bool events, bool cut, struct cgn_str text,
	size_t piece)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	struct ollama_answer *a = ollama_answer_new(api, stream, CGN_STR("m\"x"));
	struct ollama_time now = {1764000000123, 5};
	if (a == NULL)
		return;
	(void)ollama_answer_begin(a, cut ? 500 : 200, events, (struct cgn_str){NULL, 0});
	while (text.n > 0) {
		struct cgn_str some = {text.p, text.n < piece ? text.n : piece};
		ollama_answer_feed(a, some, &now, &out);
		text.p += some.n;
		text.n -= some.n;
		now.elapsed++;
	}
	if (cut)
		ollama_answer_cut(a, "died", &out);
	else
		ollama_answer_end(a, &now, &out);
	lines_check(cgn_buf_view(&out));
	ollama_answer_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	if (n < 1)
		return 0;
	enum ollama_api api = (enum ollama_api)(OLLAMA_CHAT + data[0] % 4);
	struct cgn_str text = {(const char *)data + 1, n - 1};
	if ((data[0] & 0x80) == 0)
		request_try(api, text);
	else
		answer_try(api, data[0] & 4, data[0] & 8, data[0] & 16, text, data[0] & 32 ? 1 : 4096);
	return 0;
}
