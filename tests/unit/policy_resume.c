/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "policy/answer/resume/resume.h"
#include "policy/answer/resume/resume_priv.h"

/* ---- an engine that always gives the same answer, one token an event ---- */

static const char *const tokens[] = {"The", " \\\"sea\\\"", " is", "\\n\\n", "wide", " \xc3\xbcnd",
	" \xe6\x97\xa5\xe6\x9c\xac", "\\u00e9", " ", "\\t", "deep", " \\ud83d\\ude00", ".", " end"};
#define TOKENS CGN_COUNT(tokens)

struct style {
	const char *name;
	enum prompt_api api;
	bool crlf, usage, every_usage, role_alone, usage_with_finish, done;
	unsigned limit; /* |limit|: max_tokens; 0: absent. */
};

static struct json_val json_parsed(const char *text)
{
	struct json_val v;
	struct cgn_err err = {0};
	if (!cgn_ok(json_parse(cgn_str_of(text), &v, NULL, &err)))
		fail_msg("%s: %s", err.msg, text);
	return v;
}

/* Append the text of tokens [0, n), unescaped. */
static void put_tokens(size_t n, struct cgn_buf *out)
{
	for (size_t i = 0; i < n; i++) {
		char quoted[64];
		(void)snprintf(quoted, sizeof quoted, "\"%s\"", tokens[i]);
		json_str_to(json_parsed(quoted), out);
	}
}

struct stream {
	const struct style *how;
	const char *id;
	unsigned created, prompt;
	size_t said;
	struct cgn_buf *out;
};

static void put_event(struct stream *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put_event(struct stream *s, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	const char *end = s->how->crlf ? "\r\n" : "\n";
	cgn_buf_fmt(s->out, "data: %s%s%s", text, end, end);
}

static const char *usage_text(const struct stream *s, bool there)
{
	static char text[200];
	(void)snprintf(text, sizeof text,
		",\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%zu,\"completion_tokens\":%zu,\"prompt_tokens_details\":{\"cached_tokens\":3}}",
		s->prompt, s->prompt + s->said, s->said);
	return there ? text : "";
}

static void put_chunk(struct stream *s, const char *choice, bool with_usage)
{
	put_event(s, "{\"id\":\"%s\",\"object\":\"x\",\"created\":%u,\"model\":\"m\",\"choices\":[%s]%s}",
		s->id, s->created, choice, usage_text(s, with_usage));
}

/* Append an answer of tokens [from, from + most) in the given style. */
static void put_answer(const struct style *how, const char *id, unsigned created, size_t from, size_t most,
	struct cgn_buf *out)
{
	struct stream s = {how, id, created, 20 + (unsigned)from, 0, out};
	char choice[256];
	bool chat = how->api == PROMPT_CHAT;
	if (chat && how->role_alone)
		put_chunk(&s,
			"{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}",
			how->every_usage);
	size_t end = from + most < TOKENS ? from + most : TOKENS;
	for (size_t i = from; i < end; i++) {
		s.said++;
		(void)snprintf(choice, sizeof choice,
			chat ? "{\"index\":0,\"delta\":{\"content\":\"%s\"},\"finish_reason\":null}"
			     : "{\"index\":0,\"text\":\"%s\",\"logprobs\":null,\"finish_reason\":null}",
			tokens[i]);
		put_chunk(&s, choice, how->every_usage);
	}
	(void)snprintf(choice, sizeof choice,
		chat ? "{\"index\":0,\"delta\":{},\"finish_reason\":\"%s\"}"
		     : "{\"index\":0,\"text\":\"\",\"finish_reason\":\"%s\"}",
		end == from + most ? "length" : "stop");
	put_chunk(&s, choice, how->usage_with_finish || how->every_usage);
	if (how->usage && !how->usage_with_finish)
		put_chunk(&s, "", true);
	put_event(&s, "[DONE]");
}

static void ask_body(const struct style *how, struct cgn_buf *out)
{
	cgn_buf_putz(out, "{ \"model\":\"m\", \"stream\" : true,");
	if (how->limit > 0)
		cgn_buf_fmt(out, "\"max_tokens\": %u,", how->limit);
	if (how->usage)
		cgn_buf_putz(out, "\"stream_options\":{\"include_usage\":true},");
	cgn_buf_putz(out,
		how->api == PROMPT_CHAT ? "\"messages\":[{\"role\":\"user\",\"content\":\"hi \\u00fc\"} ] }"
					: "\"prompt\":\"hi \\u00fc\"}");
}

static void feed_resume(struct resume *s, struct cgn_str data, size_t step, struct cgn_buf *out)
{
	for (size_t at = 0; at < data.n; at += step) {
		struct cgn_str part = {data.p + at, data.n - at < step ? data.n - at : step};
		char *own = malloc(part.n); /* A block of its own, freed after the call. */
		assert_non_null(own);
		memcpy(own, part.p, part.n);
		resume_feed(s, (struct cgn_str){own, part.n}, out);
		free(own);
	}
}

/* Read the resuming body as the engine does: set the position to continue from, and the limit. */
static void read_body(const struct style *how, const char *body, size_t *from, size_t *most)
{
	struct json_val v = json_parsed(body), prompt, message;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf said = {0};
	*most = (size_t)json_get_u64(v, "max_tokens", 1000);
	size_t lead = 0;
	if (how->api == PROMPT_COMPLETIONS) {
		assert_true(json_get(v, "prompt", &prompt));
		json_str_to(prompt, &text);
		lead = strlen("hi \xc3\xbc");
		assert_true(text.n >= lead && memcmp(text.p, "hi \xc3\xbc", lead) == 0);
	} else {
		unsigned n = 0;
		assert_true(json_get(v, "messages", &prompt));
		for (struct json_iter it = json_iter_of(prompt); json_next_elem(&it, &message);)
			n++;
		assert_true(n == 1 || n == 2);
		assert_int_equal(json_get_bool(v, "continue_final_message", false), n == 2);
		assert_int_equal(json_get_bool(v, "add_generation_prompt", true), n == 1);
		struct json_iter it = json_iter_of(prompt);
		for (unsigned i = 0; i < n; i++)
			assert_true(json_next_elem(&it, &message));
		struct json_val content;
		assert_true(json_get(message, "content", &content));
		if (n == 2)
			json_str_to(content, &text);
	}
	for (*from = 0; *from <= TOKENS; ++*from) {
		said.n = 0;
		put_tokens(*from, &said);
		if (said.n == text.n - lead && (said.n == 0 || memcmp(said.p, text.p + lead, said.n) == 0))
			return;
	}
	fail_msg("%s: it never said that: %s", how->name, body);
}

static void without_cr(struct cgn_buf *b)
{
	size_t n = 0;
	for (size_t i = 0; i < b->n; i++)
		if (b->p[i] != '\r')
			b->p[n++] = b->p[i];
	b->n = n;
}

static const struct engine_resume *engine_of_vllm(void)
{
	return engine_resume_named(CGN_STR("sim"));
}

/* Produce the rest of the answer by as many engines as there are cuts; each engine dies after a number of
 * bytes of its stream. */
static void go_on(struct resume *s, const struct style *how, struct cgn_str body, const size_t *cuts,
	size_t n_cuts, struct cgn_buf *out)
{
	for (size_t i = 0; resume_need(s) == RESUME_NEEDS_ENGINE; i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf next = {0};
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf bytes = {0};
		size_t from = 0, most = 0;
		char id[32];
		assert_null(resume_lost(s));
		resume_body(s, json_parsed(body.p), engine_of_vllm(), &next);
		assert_false(next.bad);
		read_body(how, cgn_buf_z(&next), &from, &most);
		/* As long as nothing was shown, the id of the first answer is unknown. */
		(void)snprintf(id, sizeof id, out->n > 0 ? "other-%zu" : "first", i);
		put_answer(how, id, out->n > 0 ? 1000 + (unsigned)i : 7, from, most, &bytes);
		resume_begin(s, engine_of_vllm());
		size_t cut = i < n_cuts && cuts[i] < bytes.n ? cuts[i] : bytes.n;
		feed_resume(s, (struct cgn_str){bytes.p, cut}, 1 + cut % 7, out);
		if (cut == bytes.n)
			resume_flush(s, out);
		assert_true(i < 8);
	}
	if (resume_need(s) == RESUME_NEEDS_DONE)
		resume_done(s, out);
}

static void cut_and_compare(const struct style *how, const size_t *cuts, size_t n_cuts, size_t step)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf whole = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	ask_body(how, &body);
	put_answer(how, "first", 7, 0, how->limit > 0 ? how->limit : 1000, &whole);
	struct cgn_str asked = cgn_str_of(cgn_buf_z(&body));
	struct resume *s = resume_new(how->api, json_parsed(asked.p));
	assert_non_null(s);
	resume_begin(s, engine_of_vllm());
	size_t cut = cuts[0] < whole.n ? cuts[0] : whole.n;
	feed_resume(s, (struct cgn_str){whole.p, cut}, step, &out);
	assert_true(out.n <= cut && memcmp(out.p == NULL ? "" : out.p, whole.p, out.n) == 0);
	assert_true(out.n == 0 || out.p[out.n - 1] == '\n' || out.p[out.n - 1] == '\r');
	go_on(s, how, asked, cuts + 1, n_cuts - 1, &out);
	without_cr(&out);
	without_cr(&whole);
	if (out.n != whole.n || memcmp(out.p, whole.p, out.n) != 0)
		fail_msg("%s, cut at %zu: got\n%s\nnot\n%s", how->name, cut, cgn_buf_z(&out),
			cgn_buf_z(&whole));
	resume_free(&s);
}

/* A usage in the middle of a stream is that moment's: only styles without one give the same bytes after a
 * cut. */
static const struct style styles[] = {
	{.name = "chat", .api = PROMPT_CHAT, .role_alone = true},
	{.name = "chat, usage", .api = PROMPT_CHAT, .role_alone = true, .usage = true},
	{.name = "chat, usage, limit", .api = PROMPT_CHAT, .role_alone = true, .usage = true, .limit = 9},
	{.name = "chat, limit, CRLF", .api = PROMPT_CHAT, .role_alone = true, .crlf = true, .limit = 11},
	{.name = "chat without a role", .api = PROMPT_CHAT, .usage = true},
	{.name = "chat, usage in every chunk",
		.api = PROMPT_CHAT,
		.role_alone = true,
		.usage = true,
		.every_usage = true,
		.limit = 12},
	{.name = "text", .api = PROMPT_COMPLETIONS, .limit = 100},
	{.name = "text by default", .api = PROMPT_COMPLETIONS},
	{.name = "text, usage, limit, CRLF",
		.api = PROMPT_COMPLETIONS,
		.crlf = true,
		.usage = true,
		.limit = 8},
	{.name = "text, usage at the end",
		.api = PROMPT_COMPLETIONS,
		.usage = true,
		.usage_with_finish = true,
		.limit = 10},
};

static void every_cut_is_seamless(void **state)
{
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(styles); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf whole = {0};
		put_answer(&styles[i], "first", 7, 0, styles[i].limit > 0 ? styles[i].limit : 1000, &whole);
		assert_true(whole.n > 500);
		for (size_t cut = 0; cut <= whole.n; cut++) {
			cut_and_compare(&styles[i], &cut, 1, whole.n);
			cut_and_compare(&styles[i], &cut, 1, 1);
		}
	}
}

static void two_and_three_cuts_are_seamless(void **state)
{
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(styles); i++)
		for (size_t a = 0; a < 1800; a += 71)
			for (size_t b = 0; b < 1800; b += 131) {
				const size_t cuts[] = {a, b, (a + b) % 600};
				cut_and_compare(&styles[i], cuts, 3, 64);
			}
}

/* ---- answers that are repeated ---- */

/* Append the answer of an engine: |id| has four letters, |logprobs| belongs to each piece. */
static void put_pieces(const char *id, const char *const *pieces, size_t n, const char *logprobs,
	struct cgn_buf *out)
{
	for (size_t i = 0; i < n; i++)
		cgn_buf_fmt(out,
			"data: {\"id\":\"%s\",\"created\":7,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},%s\"finish_reason\":null}]}\n\n",
			id, pieces[i], logprobs);
	cgn_buf_fmt(out,
		"data: {\"id\":\"%s\",\"created\":7,\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
		"data: {\"id\":\"%s\",\"created\":7,\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":%zu,\"total_tokens\":%zu}}\n\n"
		"data: [DONE]\n\n",
		id, id, n, 9 + n);
}

#define GREEDY "{\"temperature\":0.0,\"stream\":true,\"stream_options\":{\"include_usage\":true}"
#define HELLO  ",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define PROBS  "\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-1}]},"

static const struct repetition {
	const char *name, *body, *logprobs;
	bool marks; /* The text has U+FFFD. */
} repetitions[] = {
	{"json", GREEDY HELLO ",\"response_format\":{\"type\":\"json_object\"}}", "", false},
	{"logprobs", GREEDY HELLO ",\"logprobs\":true}", PROBS, false},
	{"client continues", GREEDY ",\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}]}", "", false},
	{"unknown bytes", GREEDY HELLO "}", "", true},
};

static const char *const parts[] = {"{", "\\\"a\\\":", " ", " \\n", " 12", "\\t", "}\\n"};
/* Chunks without text have log-probabilities too. */
static const char *const probed[] = {"{", "\\\"a\\\":", "", " \\n", "", "", "}\\n"};
static const char *const marked[] = {"a", " ", "\xef\xbf\xbd", " b", "\xef\xbf\xbd\xef\xbf\xbd", " c ", "d"};

static const char *const *pieces_of(const struct repetition *p)
{
	return p->marks ? marked : p->logprobs[0] != '\0' ? probed : parts;
}

/* The second engine gets the client's body, and says all again. */
static void a_repetition_is_seamless(const struct repetition *p, size_t cut)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf whole = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf again = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf next = {0};
	const char *const *pieces = pieces_of(p);
	struct json_val body = json_parsed(p->body);
	put_pieces("aaaa", pieces, CGN_COUNT(parts), p->logprobs, &whole);
	assert_null(resume_refusal(PROMPT_CHAT, body));
	struct resume *s = resume_new(PROMPT_CHAT, body);
	resume_begin(s, engine_of_vllm());
	feed_resume(s, (struct cgn_str){whole.p, cut}, 50, &out);
	assert_null(resume_lost(s));
	if (resume_need(s) == RESUME_NEEDS_ENGINE) {
		put_pieces(out.n > 0 ? "bbbb" : "aaaa", pieces, CGN_COUNT(parts), p->logprobs, &again);
		resume_body(s, body, engine_of_vllm(), &next);
		if (resume_text(s).n > 0) { /* U+FFFD has not come yet. */
			resume_free(&s);
			return;
		}
		assert_string_equal(cgn_buf_z(&next), p->body);
		resume_begin(s, NULL);
		feed_resume(s, cgn_buf_view(&again), 1 + cut % 9, &out);
	}
	if (resume_need(s) == RESUME_NEEDS_DONE)
		resume_done(s, &out);
	assert_false(resume_differs(s));
	if (out.n != whole.n || memcmp(out.p, whole.p, out.n) != 0)
		fail_msg("%s, cut at %zu: got\n%s\nnot\n%s", p->name, cut, cgn_buf_z(&out),
			cgn_buf_z(&whole));
	resume_free(&s);
}

static void answers_are_repeated_seamlessly(void **state)
{
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(repetitions); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf whole = {0};
		put_pieces("aaaa", pieces_of(&repetitions[i]), CGN_COUNT(parts), repetitions[i].logprobs,
			&whole);
		for (size_t cut = 0; cut <= whole.n; cut++)
			a_repetition_is_seamless(&repetitions[i], cut);
	}
}

/* The client has "{", and "a" in quotes and a colon; the next engine says |pieces|, and the client gets no more. */
static void expect_other(const char *const *pieces, size_t n, const char *logprobs)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf whole = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf again = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	struct resume *s = resume_new(PROMPT_CHAT, json_parsed(repetitions[1].body));
	put_pieces("aaaa", parts, 2, PROBS, &whole);
	put_pieces("bbbb", pieces, n, logprobs, &again);
	resume_begin(s, engine_of_vllm());
	const char *end = strstr(cgn_buf_z(&whole),
		"data: {\"id\":\"aaaa\",\"created\":7,\"choices\":[{\"index\":0,\"delta\":{},");
	feed_resume(s, (struct cgn_str){whole.p, (size_t)(end - whole.p)}, 50, &out);
	size_t had = out.n;
	assert_true(had > 0);
	resume_begin(s, NULL);
	feed_resume(s, cgn_buf_view(&again), 40, &out);
	assert_true(resume_differs(s));
	assert_string_equal(resume_lost(s), RESUME_LACKS_SAME);
	assert_int_equal(out.n, had);
	resume_free(&s);
}

static void another_answer_is_not_mixed_in(void **state)
{
	static const char *const other[] = {"{", "\\\"b\\\":"}, *const brief[] = {"{"},
				 *const joined[] = {"{\\\"a\\\": 1"};
	(void)state;
	expect_other(other, 2, PROBS);
	expect_other(brief, 1, PROBS);
	expect_other(joined, 1, PROBS); /* The log-probabilities are of more than the client lacks. */
}

static void only_answers_at_temperature_0_are_repeated(void **state)
{
	(void)state;
	static const char *const warm[] = {",\"temperature\":0.1", ",\"temperature\":\"0\"",
		",\"temperature\":null", ""};
	for (size_t i = 0; i < CGN_COUNT(warm); i++) {
		char body[200];
		(void)snprintf(body, sizeof body, "{\"stream\":true" HELLO ",\"logprobs\":true%s}", warm[i]);
		assert_string_equal(resume_refusal(PROMPT_CHAT, json_parsed(body)), RESUME_LACKS_LOGPROBS);
	}
	assert_string_equal(resume_refusal(PROMPT_CHAT,
				    json_parsed(GREEDY HELLO ",\"logprobs\":true,\"n\":2}")),
		RESUME_LACKS_SEVERAL);
	assert_string_equal(resume_refusal(PROMPT_CHAT,
				    json_parsed(GREEDY HELLO ",\"return_token_ids\":true}")),
		RESUME_LACKS_LOGPROBS);
	assert_null(resume_refusal(PROMPT_COMPLETIONS, json_parsed(GREEDY ",\"prompt\":[1,2]}")));
}

static void counted_by_a_tokenizer(void **state)
{
	(void)state;
	struct json_val body = json_parsed(
		"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,\"max_tokens\":50,\"min_tokens\":12}");
	struct resume *s = resume_new(PROMPT_CHAT, body);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	resume_begin(s, NULL);
	resume_feed(s,
		CGN_STR("data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one two three \"}}]}\n\n"),
		&out);
	assert_true(cgn_str_is(resume_text(s), "one two three"));
	out.n = 0;
	resume_body(s, body, engine_resume_named(CGN_STR("prefill")), &out);
	/* 14 bytes in one event are three tokens, as far as is known. */
	assert_string_equal(cgn_buf_z(&out),
		"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"one two three\"}],"
		"\"stream\":true,\"max_tokens\":47,\"min_tokens\":9}");
	out.n = 0;
	resume_counted(s, 14); /* More than the text has bytes, which is impossible. */
	resume_counted(s, 0);
	resume_counted(s, 7);
	resume_body(s, body, engine_resume_named(CGN_STR("continue")), &out);
	assert_string_equal(cgn_buf_z(&out),
		"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"one two three\"}],"
		"\"stream\":true,\"max_tokens\":43,\"min_tokens\":5,\"continue_final_message\":true,\"add_generation_prompt\":false}");
	resume_free(&s);
}

/* An engine whose count decreases, or comes with some events only: no count makes a limit greater. */
static void counts_that_make_no_sense_are_held_to_the_limit(void **state)
{
	(void)state;
	struct json_val body =
		json_parsed("{\"prompt\":\"p\",\"stream\":true,\"max_tokens\":50,\"min_tokens\":60}");
	static const struct {
		unsigned first;
		const char *second;
		uint64_t most;
	} rows[] = {
		{80, "{\"choices\":[{\"index\":0,\"text\":\" \"}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}",
			1},
		{30, "{\"choices\":[{\"index\":0,\"text\":\" \"}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}",
			20},
		{30, "{\"choices\":[{\"index\":0,\"text\":\" \"}]}", 20},
		{30, "{\"choices\":[{\"index\":0,\"text\":\"b\"}]}", 19},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf event = {0};
		struct resume *s = resume_new(PROMPT_COMPLETIONS, body);
		resume_begin(s, engine_of_vllm());
		cgn_buf_fmt(&event,
			"data: {\"choices\":[{\"index\":0,\"text\":\"a\"}],\"usage\":{\"completion_tokens\":%u}}\n\ndata: %s\n\n",
			rows[i].first, rows[i].second);
		resume_feed(s, cgn_buf_view(&event), &out);
		assert_null(resume_lost(s));
		out.n = 0;
		resume_body(s, body, engine_of_vllm(), &out);
		assert_int_equal(json_get_u64(json_parsed(cgn_buf_z(&out)), "max_tokens", 0), rows[i].most);
		resume_free(&s);
	}
}

static void flags_of_the_client_are_set(void **state)
{
	(void)state;
	struct json_val body = json_parsed(
		"{\"add_generation_prompt\":true, \"continue_final_message\" : false,\"max_tokens\":9,\"max_completion_tokens\":5,"
		"\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,\"seed\":7}");
	struct resume *s = resume_new(PROMPT_CHAT, body);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	assert_null(resume_refusal(PROMPT_CHAT, body));
	resume_begin(s, engine_of_vllm());
	resume_feed(s, CGN_STR("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\\\"b\"}}]}\n\n"),
		&out);
	out.n = 0;
	resume_body(s, body, engine_of_vllm(), &out);
	assert_string_equal(cgn_buf_z(&out),
		"{\"add_generation_prompt\":false, \"continue_final_message\" : true,\"max_tokens\":4,\"max_completion_tokens\":4,"
		"\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"a\\\"b\"}],\"stream\":true,\"seed\":7}");
	resume_free(&s);
}

/* llama.cpp: null for no content, usage and timings in the last chunk, other names in another order. */
static void names_are_the_first_ones(void **state)
{
	(void)state;
	struct json_val body = json_parsed(
		"{\"prompt\":[\"p\"],\"stream\":true,\"max_tokens\":9,\"stream_options\":{\"include_usage\":true}}");
	struct resume *s = resume_new(PROMPT_COMPLETIONS, body);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	resume_begin(s, engine_of_vllm());
	resume_feed(s,
		CGN_STR("data: {\"choices\":[{\"text\":\"A\",\"index\":0}],\"created\":1,\"model\":\"x\",\"system_fingerprint\":\"f\",\"id\":\"i\"}\n\n"),
		&out);
	out.n = 0;
	resume_body(s, body, engine_resume_named(CGN_STR("llama_cpp")), &out);
	assert_string_equal(cgn_buf_z(&out),
		"{\"prompt\":[\"pA\"],\"stream\":true,\"max_tokens\":8,\"stream_options\":{\"include_usage\":true}}");
	out.n = 0;
	resume_begin(s, engine_resume_named(CGN_STR("llama_cpp")));
	resume_feed(s,
		CGN_STR("event: x\ndata: {\"choices\":[{\"text\":\"B\",\"index\":0,\"finish_reason\":\"stop\"}],\"created\":2,\"model\":\"y\",\"extra\":1,"
			"\"usage\":{\"completion_tokens\":1,\"prompt_tokens\":9,\"total_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":9}},"
			"\"id\":\"j\", \"timings\":{\"cache_n\":0}}\n\n"),
		&out);
	assert_string_equal(cgn_buf_z(&out),
		"event: x\ndata: {\"choices\":[{\"text\":\"B\",\"index\":0,\"finish_reason\":\"stop\"}],\"created\":1,\"model\":\"x\",\"extra\":1,"
		"\"usage\":{\"completion_tokens\":2,\"prompt_tokens\":8,\"total_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":8}},"
		"\"id\":\"i\"}\n\n");
	assert_int_equal(resume_need(s), RESUME_NEEDS_DONE);
	resume_free(&s);
}

/* All requested tokens were sent, possibly with the finish reason: another engine is asked only for the
 * missing part. */
static void only_the_end_is_missing(void **state)
{
	(void)state;
	struct json_val body = json_parsed(
		"{\"prompt\":\"p\",\"stream\":true,\"max_tokens\":2,\"stream_options\":{\"include_usage\":true}}");
	static const char *const ends[] = {"",
		"data: {\"id\":\"i\",\"choices\":[{\"text\":\"\",\"index\":0,\"finish_reason\":\"stop\"}]}\n\n"};
	for (size_t i = 0; i < CGN_COUNT(ends); i++) {
		struct resume *s = resume_new(PROMPT_COMPLETIONS, body);
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		resume_begin(s, engine_of_vllm());
		resume_feed(s,
			CGN_STR("data: {\"id\":\"i\",\"choices\":[{\"text\":\"a\",\"index\":0}]}\n\ndata: {\"id\":\"i\",\"choices\":[{\"text\":\"b\",\"index\":0}]}\n\n"),
			&out);
		resume_feed(s, cgn_str_of(ends[i]), &out);
		assert_int_equal(resume_need(s), RESUME_NEEDS_ENGINE);
		out.n = 0;
		resume_body(s, body, engine_of_vllm(), &out);
		assert_non_null(strstr(cgn_buf_z(&out), "\"pab\",\"stream\":true,\"max_tokens\":1,"));
		out.n = 0;
		resume_begin(s, engine_of_vllm());
		resume_feed(s, CGN_STR("data: {\"id\":\"j\",\"choices\":[{\"text\":\"c\",\"index\":0}]}\n\n"),
			&out);
		assert_int_equal(out.n, 0);
		resume_feed(s,
			CGN_STR("data: {\"id\":\"j\",\"choices\":[{\"text\":\"d\",\"index\":0,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":12,"
				"\"completion_tokens\":1,\"total_tokens\":13}}\n\ndata: [DONE]\n\n"),
			&out);
		assert_string_equal(cgn_buf_z(&out),
			i == 0 ? "data: {\"id\":\"i\",\"choices\":[{\"text\":\"\",\"index\":0,\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":10,"
				 "\"completion_tokens\":2,\"total_tokens\":12}}\n\ndata: [DONE]\n\n"
			       : "data: {\"id\":\"i\",\"choices\":[],\"usage\":{\"prompt_tokens\":10,"
				 "\"completion_tokens\":2,\"total_tokens\":12}}\n\ndata: [DONE]\n\n");
		assert_int_equal(resume_need(s), RESUME_NEEDS_NOTHING);
		resume_free(&s);
	}
}

/* The client asked for no usage: an answer with its finish reason is whole but for [DONE]. */
static void a_finished_answer_needs_no_engine(void **state)
{
	(void)state;
	struct json_val body = json_parsed("{\"prompt\":\"p\",\"stream\":true}");
	struct resume *s = resume_new(PROMPT_COMPLETIONS, body);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	resume_begin(s, engine_of_vllm());
	resume_feed(s, CGN_STR("data: {\"id\":\"i\",\"choices\":[{\"text\":\"a\",\"index\":0}]}\n\n"), &out);
	assert_int_equal(resume_need(s), RESUME_NEEDS_ENGINE);
	resume_feed(s,
		CGN_STR("data: {\"id\":\"i\",\"choices\":[{\"text\":\"\",\"index\":0,\"finish_reason\":\"stop\"}]}\n\n"),
		&out);
	assert_int_equal(resume_need(s), RESUME_NEEDS_DONE);
	resume_free(&s);
}

static void what_was_no_text_is_not_gone_on_with(void **state)
{
	(void)state;
	static const struct {
		const char *event, *why;
	} rows[] = {
		{"{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}", NULL},
		{"{\"choices\":[{\"index\":0,\"delta\":{\"content\":null,\"tool_calls\":[],\"refusal\":null,\"reasoning_content\":\"\"}}]}",
			NULL},
		{"{\"choices\":[]}", NULL},
		{"{\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}",
			RESUME_LACKS_CONTENT},
		{"{\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"hm\"}}]}",
			RESUME_LACKS_CONTENT},
		{"{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"<think>\\n\"}}]}",
			RESUME_LACKS_CONTENT},
		{"{\"choices\":[{\"index\":1,\"delta\":{\"content\":\"x\"}}]}", RESUME_LACKS_CONTENT},
		{"{\"choices\":[{\"index\":0,\"delta\":{\"content\":7}}]}", RESUME_LACKS_CONTENT},
		{"{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"logprobs\":{\"content\":[1]}}]}",
			RESUME_LACKS_CONTENT},
		{"{\"choices\":[{\"index\":0,\"delta\":{}},{\"index\":0,\"delta\":{}}]}",
			RESUME_LACKS_CONTENT},
		{"{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\xef\xbf\xbd\"}}]}",
			RESUME_LACKS_BYTES},
		{"{\"error\":{\"message\":\"x\"}}", RESUME_LACKS_SHAPE},
		{"{\"choices\":[7]}", RESUME_LACKS_SHAPE},
		{"{\"choices\":7}", RESUME_LACKS_SHAPE},
		{"[]", RESUME_LACKS_SHAPE},
		{"nonsense", RESUME_LACKS_SHAPE},
	};
	struct json_val body =
		json_parsed("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}");
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct resume *s = resume_new(PROMPT_CHAT, body);
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf in = {0};
		resume_begin(s, engine_of_vllm());
		cgn_buf_fmt(&in, "data: %s\n\n: half an ev", rows[i].event);
		resume_feed(s, cgn_buf_view(&in), &out);
		if (rows[i].why == NULL)
			assert_null(resume_lost(s));
		else
			assert_string_equal(resume_lost(s), rows[i].why);
		/* No byte is held back without a reason. */
		assert_int_equal(out.n, rows[i].why == NULL ? in.n - strlen(": half an ev") : in.n);
		resume_give_up(s, RESUME_LACKS_MEMORY, &out);
		resume_feed(s, CGN_STR("ent"), &out);
		cgn_buf_putz(&in, "ent");
		assert_true(cgn_str_eq(cgn_buf_view(&out), cgn_buf_view(&in)));
		resume_free(&s);
		assert_null(s);
		resume_free(&s); /* Nothing is left to free. */
	}
}

static void an_error_of_the_second_engine_is_shown(void **state)
{
	(void)state;
	struct json_val body =
		json_parsed("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}");
	struct resume *s = resume_new(PROMPT_CHAT, body);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	resume_begin(s, engine_of_vllm());
	resume_feed(s,
		CGN_STR("data: {\"id\":\"i\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n"),
		&out);
	out.n = 0;
	resume_body(s, body, engine_of_vllm(), &out);
	resume_begin(s, engine_of_vllm());
	out.n = 0;
	resume_feed(s, CGN_STR(": alive\n\nevent: error\ndata: {\"error\":{\"message\":\"no\"}}\n\n"), &out);
	assert_string_equal(cgn_buf_z(&out), "event: error\ndata: {\"error\":{\"message\":\"no\"}}\n\n");
	assert_string_equal(resume_lost(s), RESUME_LACKS_SHAPE);
	resume_free(&s);
}

static void an_event_too_long_goes_through(void **state)
{
	(void)state;
	struct json_val body =
		json_parsed("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}");
	struct resume *s = resume_new(PROMPT_CHAT, body);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	char block[4096];
	size_t sent = 0;
	memset(block, 'x', sizeof block);
	resume_begin(s, engine_of_vllm());
	for (; sent < 2 * RESUME_EVENT_MAX; sent += sizeof block) {
		resume_feed(s, (struct cgn_str){block, sizeof block}, &out);
		assert_true(resume_bytes(s) < 5 * RESUME_EVENT_MAX);
	}
	assert_string_equal(resume_lost(s), RESUME_LACKS_MEMORY);
	assert_int_equal(out.n, sent);
	resume_free(&s);
}

/* An answer that is longer than the text that is kept reaches the client whole, but is not resumable. */
static void a_text_too_long_goes_through(void **state)
{
	(void)state;
	struct json_val body =
		json_parsed("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}");
	struct resume *s = resume_new(PROMPT_CHAT, body);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf event = {0};
	const size_t piece = 64 << 10, most = RESUME_TEXT_MAX / piece;
	cgn_buf_putz(&event, "data: {\"id\":\"i\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"");
	for (size_t i = 0; i < piece; i++)
		cgn_buf_char(&event, 'x');
	cgn_buf_putz(&event, "\"}}]}\n\n");
	resume_begin(s, engine_of_vllm());
	for (size_t i = 0; i < most + 2; i++) {
		resume_feed(s, cgn_buf_view(&event), &out);
		assert_int_equal(out.n, (i + 1) * event.n);
		if (i + 1 < most)
			assert_null(resume_lost(s));
	}
	assert_string_equal(resume_lost(s), RESUME_LACKS_MEMORY);
	assert_true(resume_bytes(s) < 3 * RESUME_TEXT_MAX);
	resume_free(&s);
}

static void what_cannot_be_resumed_is_refused(void **state)
{
	(void)state;
#define CHAT(more) \
	"{\"stream\":true,\"messages\":[{\"role\":\"system\"},{\"role\":\"user\",\"content\":\"x\"}]" more "}"
#define TEXT(prompt, more) "{\"stream\":true,\"prompt\":" prompt more "}"
	static const struct {
		enum prompt_api api;
		const char *body, *why;
	} rows[] = {
		{PROMPT_CHAT, CHAT(""), NULL},
		{PROMPT_CHAT,
			CHAT(",\"n\":1,\"logprobs\":false,\"response_format\":{\"type\":\"text\"},\"tools\":[],\"tool_choice\":\"auto\",\"top_logprobs\":null"),
			NULL},
		{PROMPT_CHAT, CHAT(",\"n\":2"), RESUME_LACKS_SEVERAL},
		{PROMPT_CHAT, CHAT(",\"n\":\"1\""), RESUME_LACKS_SEVERAL},
		{PROMPT_CHAT, CHAT(",\"logprobs\":true"), RESUME_LACKS_LOGPROBS},
		{PROMPT_CHAT, CHAT(",\"top_logprobs\":0"), RESUME_LACKS_LOGPROBS},
		{PROMPT_CHAT, CHAT(",\"response_format\":{\"type\":\"json_object\"}"), RESUME_LACKS_GRAMMAR},
		{PROMPT_CHAT, CHAT(",\"response_format\":{}"), RESUME_LACKS_GRAMMAR},
		{PROMPT_CHAT, CHAT(",\"guided_json\":{}"), RESUME_LACKS_GRAMMAR},
		{PROMPT_CHAT, CHAT(",\"grammar\":\"root ::= x\""), RESUME_LACKS_GRAMMAR},
		{PROMPT_CHAT, CHAT(",\"tool_choice\":\"required\""), RESUME_LACKS_GRAMMAR},
		{PROMPT_CHAT, CHAT(",\"continue_final_message\":true"), RESUME_LACKS_PREFILL},
		{PROMPT_CHAT, CHAT(",\"add_generation_prompt\":false"), RESUME_LACKS_PREFILL},
		{PROMPT_CHAT, "{\"stream\":true,\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}]}",
			RESUME_LACKS_PREFILL},
		{PROMPT_CHAT, "{\"stream\":true,\"messages\":[]}", RESUME_LACKS_SHAPE},
		{PROMPT_CHAT, "{\"stream\":true,\"messages\":\"x\"}", RESUME_LACKS_SHAPE},
		{PROMPT_CHAT, "{\"messages\":[{\"role\":\"user\"}]}", RESUME_LACKS_API},
		{PROMPT_MESSAGES, CHAT(""), RESUME_LACKS_API},
		{PROMPT_RESPONSES, CHAT(""), RESUME_LACKS_API},
		{PROMPT_NONE, CHAT(""), RESUME_LACKS_API},
		{PROMPT_COMPLETIONS, TEXT("\"x\"", ""), NULL},
		{PROMPT_COMPLETIONS, TEXT("[\"x\"]", ",\"echo\":false"), NULL},
		{PROMPT_COMPLETIONS, TEXT("\"x\"", ",\"echo\":true"), RESUME_LACKS_LOGPROBS},
		{PROMPT_COMPLETIONS, TEXT("\"x\"", ",\"logprobs\":1"), RESUME_LACKS_LOGPROBS},
		{PROMPT_COMPLETIONS, TEXT("\"x\"", ",\"suffix\":\"y\""), RESUME_LACKS_GRAMMAR},
		{PROMPT_COMPLETIONS, TEXT("\"x\"", ",\"best_of\":3"), RESUME_LACKS_SEVERAL},
		{PROMPT_COMPLETIONS, TEXT("[\"x\",\"y\"]", ""), RESUME_LACKS_SEVERAL},
		{PROMPT_COMPLETIONS, TEXT("[1,2]", ""), RESUME_LACKS_IDS},
		{PROMPT_COMPLETIONS, TEXT("[[1,2]]", ""), RESUME_LACKS_IDS},
		{PROMPT_COMPLETIONS, TEXT("[]", ""), RESUME_LACKS_SHAPE},
		{PROMPT_COMPLETIONS, "{\"stream\":true}", RESUME_LACKS_SHAPE},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		const char *why = resume_refusal(rows[i].api, json_parsed(rows[i].body));
		if ((why == NULL) != (rows[i].why == NULL) || (why != NULL && strcmp(why, rows[i].why) != 0))
			fail_msg("%s: %s", rows[i].body, why != NULL ? why : "taken");
	}
}

static void edits_take_their_comma_along(void **state)
{
	(void)state;
	static const struct {
		const char *doc, *key, *left;
	} rows[] = {
		{"{\"a\":1,\"b\":2}", "a", "{\"b\":2}"},
		{"{\"a\":1,\"b\":2}", "b", "{\"a\":1}"},
		{"{ \"a\" : 1 , \"b\":2 , \"c\":3}", "b", "{ \"a\" : 1  , \"c\":3}"},
		{"{ \"a\" : [1,2] }", "a", "{}"},
		{"{\"\\u0061b\":1,\"b\":2}", "ab", "{\"b\":2}"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		struct json_val v = json_parsed(rows[i].doc);
		struct edits e = {.doc = v.raw};
		resume_edit_drop(&e, v, rows[i].key);
		resume_edit_apply(&e, &out);
		assert_string_equal(cgn_buf_z(&out), rows[i].left);
		(void)json_parsed(cgn_buf_z(&out));
	}
}

static void kinds_say_how_they_continue(void **state)
{
	(void)state;
	assert_int_equal(engine_resume_named(CGN_STR("sim"))->shape, ENGINE_RESUME_CONTINUE);
	assert_int_equal(engine_resume_named(CGN_STR("llama_cpp"))->shape, ENGINE_RESUME_PREFILL);
	assert_null(engine_resume_named(CGN_STR("")));
	assert_null(engine_resume_named(CGN_STR("none")));
	assert_non_null(engine_resume_named(cgn_str_of(config_enum_text(RESUME_CONTINUE))));
	assert_non_null(engine_resume_named(cgn_str_of(config_enum_text(RESUME_PREFILL))));
	struct config_engine e = {.kind = ENGINE_OPENAI_COMPAT, .resume = RESUME_NONE};
	assert_string_equal(engine_resume_of(&e), "");
	e.resume = RESUME_PREFILL;
	assert_string_equal(engine_resume_of(&e), "prefill");
	e.kind = ENGINE_LLAMA_CPP;
	assert_string_equal(engine_resume_of(&e), "llama_cpp");
	e.kind = ENGINE_SIM;
	assert_string_equal(engine_resume_of(&e), "sim");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_cut_is_seamless),
		cmocka_unit_test(two_and_three_cuts_are_seamless),
		cmocka_unit_test(answers_are_repeated_seamlessly),
		cmocka_unit_test(another_answer_is_not_mixed_in),
		cmocka_unit_test(only_answers_at_temperature_0_are_repeated),
		cmocka_unit_test(counted_by_a_tokenizer),
		cmocka_unit_test(counts_that_make_no_sense_are_held_to_the_limit),
		cmocka_unit_test(flags_of_the_client_are_set),
		cmocka_unit_test(names_are_the_first_ones),
		cmocka_unit_test(only_the_end_is_missing),
		cmocka_unit_test(a_finished_answer_needs_no_engine),
		cmocka_unit_test(what_was_no_text_is_not_gone_on_with),
		cmocka_unit_test(an_error_of_the_second_engine_is_shown),
		cmocka_unit_test(an_event_too_long_goes_through),
		cmocka_unit_test(a_text_too_long_goes_through),
		cmocka_unit_test(what_cannot_be_resumed_is_refused),
		cmocka_unit_test(edits_take_their_comma_along),
		cmocka_unit_test(kinds_say_how_they_continue),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
