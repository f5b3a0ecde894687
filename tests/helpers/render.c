/* SPDX-License-Identifier: Apache-2.0 */
/* render: chat templates for tests in other languages. Reads one JSON object a line: template, messages,
 * tools, documents, kwargs, tokens (bos_token...), add_generation_prompt, continue_final_message, now,
 * max_output, max_steps, max_memory. Writes one JSON object a line: text, or code and error, and with
 * "rounds": N the nanoseconds of the fastest of N renders. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "policy/text/template/template.h"

static struct cgn_str token_of(struct json_val tokens, const char *name, struct cgn_arena *a)
{
	return json_get_str(tokens, name, a);
}

static struct template_ask ask_of(struct json_val in, struct cgn_arena *a)
{
	struct template_ask ask = {0};
	struct json_val tokens = {JSON_NULL, {NULL, 0}};
	(void)json_get(in, "messages", &ask.messages);
	(void)json_get(in, "tools", &ask.tools);
	(void)json_get(in, "documents", &ask.documents);
	(void)json_get(in, "kwargs", &ask.kwargs);
	(void)json_get(in, "tokens", &tokens);
	ask.bos_token = token_of(tokens, "bos_token", a);
	ask.eos_token = token_of(tokens, "eos_token", a);
	ask.unk_token = token_of(tokens, "unk_token", a);
	ask.pad_token = token_of(tokens, "pad_token", a);
	ask.add_generation_prompt = json_get_bool(in, "add_generation_prompt", false);
	ask.continue_final_message = json_get_bool(in, "continue_final_message", false);
	ask.now = (int64_t)json_get_u64(in, "now", 0);
	ask.max_output = json_get_u64(in, "max_output", 0);
	ask.max_steps = json_get_u64(in, "max_steps", 0);
	ask.max_memory = json_get_u64(in, "max_memory", 0);
	return ask;
}

static uint64_t now_ns(void)
{
	struct timespec t;
	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * CGN_SEC + (uint64_t)t.tv_nsec;
}

static cgn_rc render_rounds(struct json_val in, const struct template *t, const struct template_ask *ask,
	struct cgn_buf *text, uint64_t *best, struct cgn_err *err)
{
	cgn_rc rc = CGN_OK;
	*best = UINT64_MAX;
	for (uint64_t rounds = json_get_u64(in, "rounds", 1); rounds > 0 && cgn_ok(rc); rounds--) {
		text->n = 0;
		uint64_t from = now_ns();
		rc = template_render(t, ask, text, err);
		uint64_t took = now_ns() - from;
		*best = took < *best ? took : *best;
	}
	return rc;
}

static void render_answer(struct json_val in, struct cgn_buf *line)
{
	struct cgn_arena a;
	struct cgn_err err = {0};
	struct cgn_buf text = {0};
	struct template *t = NULL;
	uint64_t best = 0;
	cgn_arena_init(&a, (size_t)1 << 30);
	struct template_ask ask = ask_of(in, &a);
	cgn_rc rc = template_compile(json_get_str(in, "template", &a), &t, &err);
	if (cgn_ok(rc))
		rc = render_rounds(in, t, &ask, &text, &best, &err);
	struct json_out o = json_out_to(line);
	json_open(&o, '{');
	json_key(&o, cgn_ok(rc) ? "text" : "error");
	json_put_str(&o, cgn_ok(rc) ? cgn_buf_view(&text) : cgn_str_of(err.msg));
	json_key(&o, "code");
	json_put_z(&o, cgn_code_name(rc.code));
	json_key(&o, "ns");
	json_put_u64(&o, best);
	json_close(&o, '}');
	template_free(&t);
	cgn_buf_fini(&text);
	cgn_arena_fini(&a);
}

int main(void)
{
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;
	while ((n = getline(&line, &cap, stdin)) > 0) {
		struct json_val in;
		struct cgn_err err;
		struct cgn_buf out = {0};
		if (!cgn_ok(json_parse((struct cgn_str){line, (size_t)n}, &in, NULL, &err))) {
			(void)fprintf(stderr, "render: %s\n", err.msg);
			return 2;
		}
		render_answer(in, &out);
		(void)printf("%s\n", cgn_buf_z(&out));
		(void)fflush(stdout);
		cgn_buf_fini(&out);
	}
	free(line);
	return 0;
}
