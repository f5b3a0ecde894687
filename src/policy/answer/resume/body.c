/* SPDX-License-Identifier: Apache-2.0 */
/* Checks which requests can be resumed, and makes the request that resumes an answer. */
#include "policy/text/body/body.h"
#include "base/core/err.h"
#include "policy/answer/resume/resume_priv.h"

static bool is_there(struct json_val v)
{
	return v.raw.p != NULL && v.type != JSON_NULL;
}

static bool is_true(struct json_val v)
{
	return v.raw.p != NULL && json_bool(v, false);
}

static bool is_text(struct json_val v, const char *z)
{
	return v.type == JSON_STRING && v.raw.n == strlen(z) + 2 && memcmp(v.raw.p + 1, z, v.raw.n - 2) == 0;
}

/* ---- refusals ---- */

/* Return true when absent, null, or 1. */
static bool is_one(struct json_val v)
{
	uint64_t n = 0;
	return !is_there(v) || (json_u64(v, &n) && n == 1);
}

static const char *refuse_count(struct json_val body)
{
	static const char *const keys[] = {"n", "best_of"};
	struct json_val v[CGN_COUNT(keys)];
	json_pick(body, keys, CGN_COUNT(keys), v);
	for (size_t i = 0; i < CGN_COUNT(keys); i++)
		if (!is_one(v[i]))
			return RESUME_LACKS_SEVERAL;
	return NULL;
}

static bool any_is_set(struct json_val body, const char *const *keys, size_t n)
{
	struct json_val v;
	for (size_t i = 0; i < n; i++)
		if (json_get(body, keys[i], &v) && is_there(v) && (v.type != JSON_BOOL || is_true(v)))
			return true;
	return false;
}

/* Return true if chunks are to have what a repetition can't be compared by. */
static bool asks_for_ids(struct json_val body)
{
	static const char *const keys[] = {"prompt_logprobs", "n_probs", "return_token_ids",
		"return_tokens_as_token_ids", "return_tokens", "echo"};
	return any_is_set(body, keys, CGN_COUNT(keys));
}

static bool asks_for_logprobs(struct json_val body)
{
	static const char *const keys[] = {"logprobs", "top_logprobs"};
	return any_is_set(body, keys, CGN_COUNT(keys));
}

bool resume_is_greedy(struct json_val body)
{
	struct json_val v;
	double t = 1;
	return json_get(body, "temperature", &v) && json_f64(v, &t) && t == 0;
}

static const char *refuse_chat(struct json_val body)
{
	struct json_val messages, message, last = {0}, role, flag;
	if (!json_get(body, "messages", &messages) || messages.type != JSON_ARRAY)
		return RESUME_LACKS_SHAPE;
	for (struct json_iter it = json_iter_of(messages); json_next_elem(&it, &message);)
		last = message;
	if (last.type != JSON_OBJECT || last.raw.p == NULL || !json_get(last, "role", &role))
		return RESUME_LACKS_SHAPE;
	if (is_text(role, "assistant") ||
		(json_get(body, "continue_final_message", &flag) && is_true(flag)) ||
		(json_get(body, "add_generation_prompt", &flag) && is_there(flag) && !is_true(flag)))
		return RESUME_LACKS_PREFILL;
	return NULL;
}

/* Find the prompt: a string, or a list of one. */
static const char *find_prompt(struct json_val body, struct json_val *prompt)
{
	if (!json_get(body, "prompt", prompt))
		return RESUME_LACKS_SHAPE;
	if (prompt->type == JSON_ARRAY) {
		struct json_iter it = json_iter_of(*prompt);
		struct json_val more;
		if (!json_next_elem(&it, prompt))
			return RESUME_LACKS_SHAPE;
		if (prompt->type == JSON_STRING && json_next_elem(&it, &more))
			return RESUME_LACKS_SEVERAL;
	}
	return prompt->type == JSON_STRING ? NULL : RESUME_LACKS_IDS;
}

const char *resume_uncontinued(enum prompt_api api, struct json_val body)
{
	struct json_val prompt;
	if (asks_for_logprobs(body))
		return RESUME_LACKS_LOGPROBS;
	if (body_is_constrained(body))
		return RESUME_LACKS_GRAMMAR;
	return api == PROMPT_CHAT ? refuse_chat(body) : find_prompt(body, &prompt);
}

/* Return true for reasons against a continuation that are none against a repetition. */
static bool may_repeat(const char *why)
{
	static const char *const reasons[] = {RESUME_LACKS_LOGPROBS, RESUME_LACKS_GRAMMAR, RESUME_LACKS_IDS,
		RESUME_LACKS_PREFILL};
	for (size_t i = 0; i < CGN_COUNT(reasons); i++)
		if (strcmp(why, reasons[i]) == 0)
			return true;
	return false;
}

const char *resume_refusal(enum prompt_api api, struct json_val body)
{
	const char *why = NULL;
	if ((api != PROMPT_CHAT && api != PROMPT_COMPLETIONS) || !json_get_bool(body, "stream", false))
		return RESUME_LACKS_API;
	if ((why = refuse_count(body)) != NULL)
		return why;
	if (asks_for_ids(body))
		return RESUME_LACKS_LOGPROBS;
	why = resume_uncontinued(api, body);
	return why != NULL && may_repeat(why) && resume_is_greedy(body) ? NULL : why;
}

const char *resume_lost_text(const char *why)
{
	static const struct {
		const char *why, *text;
	} rows[] = {
		{RESUME_LACKS_API, "only streams of chat and text completions can be"},
		{RESUME_LACKS_SHAPE, "the request or the stream has a shape that is not known"},
		{RESUME_LACKS_SEVERAL, "the request has several prompts, or asks for several answers"},
		{RESUME_LACKS_IDS, "the prompt is token ids, and the temperature is not 0"},
		{RESUME_LACKS_LOGPROBS,
			"the request asks for token ids, or for log-probabilities at a temperature that is not 0"},
		{RESUME_LACKS_GRAMMAR,
			"the request asks for structured output at a temperature that is not 0"},
		{RESUME_LACKS_PREFILL,
			"the request itself continues an answer, at a temperature that is not 0"},
		{RESUME_LACKS_CONTENT, "the answer has tool calls or reasoning"},
		{RESUME_LACKS_BYTES,
			"the answer has U+FFFD, which stands for bytes that are not known, and the temperature is not 0"},
		{RESUME_LACKS_GREEDY, "an exact answer can be repeated at temperature 0 only"},
		{RESUME_LACKS_SAME, "the engine that was to repeat the answer said something else"},
		{RESUME_LACKS_MEMORY, "answers that are kept need too much memory (router.resume_size)"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (strcmp(rows[i].why, why) == 0)
			return rows[i].text;
	return why;
}

/* ---- the resuming request ---- */

static const char *const limit_keys[] = {"max_completion_tokens", "max_tokens", "n_predict"};

/* Return the least limit that the body sets, else the engine's default; 0: unknown. */
static uint64_t limit_of(const struct resume *s, struct json_val body)
{
	struct json_val v[CGN_COUNT(limit_keys)];
	uint64_t least = 0, n = 0;
	json_pick(body, limit_keys, CGN_COUNT(limit_keys), v);
	for (size_t i = 0; i < CGN_COUNT(limit_keys); i++)
		if (is_there(v[i]) && json_u64(v[i], &n) && n > 0 && (least == 0 || n < least))
			least = n;
	if (least == 0 && s->api == PROMPT_COMPLETIONS && s->how != NULL)
		return s->how->text_default;
	return least;
}

static void put_limit(struct edits *e, struct json_val body, uint64_t limit, struct cgn_buf *more)
{
	struct json_val v[CGN_COUNT(limit_keys)];
	uint64_t n = 0;
	bool any = false;
	json_pick(body, limit_keys, CGN_COUNT(limit_keys), v);
	for (size_t i = 0; i < CGN_COUNT(limit_keys); i++) {
		if (!is_there(v[i]) || !json_u64(v[i], &n))
			continue;
		resume_edit_u64(e, v[i].raw, limit);
		any = true;
	}
	if (!any)
		cgn_buf_fmt(more, ",\"max_tokens\":%llu", (unsigned long long)limit);
}

static void put_least(struct edits *e, struct json_val body, uint64_t base)
{
	struct json_val v;
	uint64_t n = 0;
	if (json_get(body, "min_tokens", &v) && json_u64(v, &n) && n > 0)
		resume_edit_u64(e, v.raw, n > base ? n - base : 0);
}

static void put_flag(struct edits *e, struct json_val body, const char *key, bool value, struct cgn_buf *more)
{
	struct json_val v;
	const char *text = value ? "true" : "false";
	if (json_get(body, key, &v))
		resume_edit_put(e, v.raw, cgn_str_of(text));
	else
		cgn_buf_fmt(more, ",\"%s\":%s", key, text);
}

/* Write the text as the inside of a JSON string. */
static void put_escaped(struct cgn_buf *b, struct cgn_str text)
{
	struct json_out j = json_out_to(b);
	json_put_str(&j, text);
}

static void put_message(struct resume *s, struct edits *e, struct json_val body, struct cgn_buf *store)
{
	struct json_val messages = {0};
	CGN_MUST(json_get(body, "messages", &messages));
	cgn_buf_putz(store, ",{\"role\":\"assistant\",\"content\":");
	put_escaped(store, resume_text(s));
	cgn_buf_char(store, '}');
	resume_edit_put(e, (struct cgn_str){messages.raw.p + messages.raw.n - 1, 0}, cgn_buf_view(store));
}

static void put_prompt(struct resume *s, struct edits *e, struct json_val body, struct cgn_buf *store)
{
	struct json_val prompt = {0};
	CGN_MUST(find_prompt(body, &prompt) == NULL);
	put_escaped(store, resume_text(s));
	if (store->n >= 2) /* Remove the quotes. A shorter buffer is out of memory, and so is |out|. */
		resume_edit_put(e, (struct cgn_str){prompt.raw.p + prompt.raw.n - 1, 0},
			(struct cgn_str){store->p + 1, store->n - 2});
}

static void put_more(struct edits *e, struct json_val body, const struct cgn_buf *more)
{
	if (more->n > 0)
		resume_edit_put(e, (struct cgn_str){body.raw.p + body.raw.n - 1, 0}, cgn_buf_view(more));
}

void resume_body(struct resume *s, struct json_val body, const struct engine_resume *how, struct cgn_buf *out)
{
	CGN_LIVE(s, RESUME_TAG);
	CGN_MUST(s->lost == NULL && (how != NULL || resume_text(s).n == 0));
	if (s->repeats) {
		s->base = 0;
		s->swallow = false;
		cgn_buf_str(out, body.raw);
		return;
	}
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf store = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf more = {0};
	struct edits e = {.doc = body.raw};
	uint64_t limit = limit_of(s, body);
	s->base = s->kept > 0 ? s->kept_tokens : 0;
	uint64_t said = s->tokens > s->base ? s->tokens : s->base; /* An engine may count backwards. */
	s->swallow = s->finished || (limit > 0 && said >= limit);
	if (s->swallow)
		put_limit(&e, body, 1, &more);
	else if (limit > 0 && s->base > 0)
		put_limit(&e, body, limit - s->base, &more);
	if (s->base > 0)
		put_least(&e, body, s->base);
	if (s->kept > 0 && s->api == PROMPT_COMPLETIONS)
		put_prompt(s, &e, body, &store);
	if (s->kept > 0 && s->api == PROMPT_CHAT) {
		put_message(s, &e, body, &store);
		if (how->shape == ENGINE_RESUME_CONTINUE)
			put_flag(&e, body, "continue_final_message", true, &more);
		if (how->shape == ENGINE_RESUME_CONTINUE)
			put_flag(&e, body, "add_generation_prompt", false, &more);
	}
	put_more(&e, body, &more);
	resume_edit_apply(&e, out);
	out->bad = out->bad || store.bad || more.bad;
}
