/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "policy/answer/ollama/ollama_priv.h"

#define PENDING_MAX 256 /* Tool calls whose results have not come, in one request. */

enum ollama_api ollama_api_of(struct cgn_str path)
{
	static const struct {
		const char *path;
		enum ollama_api api;
	} rows[] = {
		{"/api/chat", OLLAMA_CHAT},
		{"/api/generate", OLLAMA_GENERATE},
		{"/api/embed", OLLAMA_EMBED},
		{"/api/embeddings", OLLAMA_EMBEDDINGS},
	};
	struct cgn_str rest = path, bare = cgn_str_split(&rest, '?');
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (cgn_str_is(bare, rows[i].path))
			return rows[i].api;
	return OLLAMA_NONE;
}

/* Members of all bodies. They are found in one walk: a body may have millions of others. */
enum body_key {
	BODY_STREAM,
	BODY_KEEP_ALIVE,
	BODY_OPTIONS,
	BODY_FORMAT,
	BODY_THINK,
	BODY_LOGPROBS,
	BODY_TOP_LOGPROBS,
	BODY_MESSAGES,
	BODY_TOOLS,
	BODY_PROMPT,
	BODY_SYSTEM,
	BODY_IMAGES,
	BODY_SUFFIX,
	BODY_TEMPLATE,
	BODY_CONTEXT,
	BODY_RAW,
	BODY_INPUT,
	BODY_DIMENSIONS,
	BODY_KEYS
};
static const char *const body_keys[BODY_KEYS] = {"stream", "keep_alive", "options", "format", "think",
	"logprobs", "top_logprobs", "messages", "tools", "prompt", "system", "images", "suffix", "template",
	"context", "raw", "input", "dimensions"};

/* The members of a body; raw.p NULL: absent. */
struct members {
	struct json_val v[BODY_KEYS];
};

static void member_put(struct json_out *j, const char *key, struct json_val v)
{
	if (!ollama_is_there(v))
		return;
	json_key(j, key);
	json_put_raw(j, v.raw);
}

static bool is_empty_text(struct json_val v)
{
	return !ollama_is_there(v) || (v.type == JSON_STRING && v.raw.n == 2);
}

static bool is_empty_list(struct json_val v)
{
	struct json_val elem;
	if (v.raw.p == NULL || v.type != JSON_ARRAY)
		return false;
	struct json_iter it = json_iter_of(v);
	return !json_next_elem(&it, &elem);
}

/* ---- options ---- */

/* llama.cpp and vLLM have different names for the penalty of repetitions: both are sent. Options of loading, such
 * as num_ctx and num_gpu, are not here: the engine is loaded already. */
static const struct {
	const char *from, *to;
} option_rows[] = {
	{"temperature", "temperature"},
	{"top_p", "top_p"},
	{"top_k", "top_k"},
	{"min_p", "min_p"},
	{"typical_p", "typical_p"},
	{"seed", "seed"},
	{"stop", "stop"},
	{"presence_penalty", "presence_penalty"},
	{"frequency_penalty", "frequency_penalty"},
	{"repeat_penalty", "repeat_penalty"},
	{"repeat_penalty", "repetition_penalty"},
	{"repeat_last_n", "repeat_last_n"},
	{"mirostat", "mirostat"},
	{"mirostat_tau", "mirostat_tau"},
	{"mirostat_eta", "mirostat_eta"},
};

static CGN_RC options_put(struct json_out *j, const struct members *m, struct cgn_err *err)
{
	const char *keys[CGN_COUNT(option_rows) + 1];
	struct json_val options = m->v[BODY_OPTIONS], v[CGN_COUNT(keys)];
	const size_t last = CGN_COUNT(option_rows);
	uint64_t n = 0;
	if (!ollama_is_there(options))
		return CGN_OK;
	if (options.type != JSON_OBJECT)
		return CGN_FAIL(err, INVALID, "options is not an object");
	for (size_t i = 0; i < last; i++)
		keys[i] = option_rows[i].from;
	keys[last] = "num_predict";
	json_pick(options, keys, CGN_COUNT(keys), v);
	for (size_t i = 0; i < last; i++)
		member_put(j, option_rows[i].to, v[i]);
	/* -1 and -2 mean no limit */
	if (ollama_is_there(v[last]) && json_u64(v[last], &n) && n > 0)
		json_key_u64(j, "max_tokens", n);
	return CGN_OK;
}

static CGN_RC format_put(struct json_out *j, const struct members *m, struct cgn_err *err)
{
	const struct json_val format = m->v[BODY_FORMAT];
	if (is_empty_text(format))
		return CGN_OK;
	bool json = format.type == JSON_STRING && cgn_str_is(format.raw, "\"json\"");
	if (!json && format.type != JSON_OBJECT)
		return CGN_FAIL(err, INVALID, "format is neither \"json\" nor a JSON schema");
	json_key_open(j, "response_format", '{');
	json_key_z(j, "type", json ? "json_object" : "json_schema");
	if (!json) {
		json_key_open(j, "json_schema", '{');
		json_key_z(j, "name", "answer");
		json_key_bool(j, "strict", true);
		member_put(j, "schema", format);
		json_close(j, '}');
	}
	json_close(j, '}');
	return CGN_OK;
}

static CGN_RC think_put(struct json_out *j, const struct members *m, struct cgn_err *err)
{
	const struct json_val think = m->v[BODY_THINK];
	if (is_empty_text(think))
		return CGN_OK;
	if (think.type == JSON_STRING) {
		member_put(j, "reasoning_effort", think);
		return CGN_OK;
	}
	if (think.type != JSON_BOOL)
		return CGN_FAIL(err, INVALID, "think is neither a boolean nor an effort");
	json_key_open(j, "chat_template_kwargs", '{');
	member_put(j, "enable_thinking", think);
	json_close(j, '}');
	return CGN_OK;
}

/* json_bool, for a member that may be absent. */
static bool flag_of(const struct members *m, enum body_key key, bool fallback)
{
	return ollama_is_there(m->v[key]) ? json_bool(m->v[key], fallback) : fallback;
}

static void logprobs_put(struct json_out *j, const struct members *m)
{
	if (!flag_of(m, BODY_LOGPROBS, false))
		return;
	json_key_bool(j, "logprobs", true);
	member_put(j, "top_logprobs", m->v[BODY_TOP_LOGPROBS]);
}

/* Put the members that a chat and a text have in common. */
static CGN_RC common_put(struct json_out *j, const struct members *m, struct cgn_err *err)
{
	CGN_TRY(options_put(j, m, err));
	CGN_TRY(format_put(j, m, err));
	CGN_TRY(think_put(j, m, err));
	json_key_bool(j, "stream", true);
	json_key_open(j, "stream_options", '{');
	json_key_bool(j, "include_usage", true);
	json_close(j, '}');
	return CGN_OK;
}

/* ---- messages ---- */

/* The media type of an image in base64, by the bytes that it begins with. */
static const char *image_type(struct cgn_str base64)
{
	static const struct {
		const char *lead, *type;
	} rows[] = {{"/9j/", "image/jpeg"}, {"R0lGOD", "image/gif"}, {"UklGR", "image/webp"},
		{"Qk", "image/bmp"}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (cgn_str_starts(base64, rows[i].lead))
			return rows[i].type;
	return "image/png";
}

static void image_put(struct json_out *j, struct json_val image)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf url = {0};
	struct cgn_str inner = {image.raw.p + 1, image.raw.n - 2};
	const bool is_url = cgn_str_starts(inner, "data:") || cgn_str_starts(inner, "http://") ||
		cgn_str_starts(inner, "https://");
	cgn_buf_char(&url, '"');
	if (!is_url) {
		cgn_buf_putz(&url, "data:");
		cgn_buf_putz(&url, image_type(inner));
		cgn_buf_putz(&url, ";base64,");
	}
	cgn_buf_str(&url, inner);
	cgn_buf_char(&url, '"');
	json_open(j, '{');
	json_key_z(j, "type", "image_url");
	json_key_open(j, "image_url", '{');
	json_key(j, "url");
	json_put_raw(j, url.bad ? CGN_STR("\"\"") : cgn_buf_view(&url));
	json_close(j, '}');
	json_close(j, '}');
	j->b->bad = j->b->bad || url.bad;
}

/* Put "content": a text, or parts if there are images. |images| may be absent. */
static CGN_RC content_put(struct json_out *j, struct json_val text, struct json_val images,
	struct cgn_err *err)
{
	struct json_val image;
	if (ollama_is_there(text) && text.type != JSON_STRING)
		return CGN_FAIL(err, INVALID, "the text of a message is not a string");
	if (ollama_is_there(images) && images.type != JSON_ARRAY)
		return CGN_FAIL(err, INVALID, "images is not a list");
	json_key(j, "content");
	if (!ollama_is_there(images) || is_empty_list(images)) {
		json_put_raw(j, ollama_is_there(text) ? text.raw : CGN_STR("\"\""));
		return CGN_OK;
	}
	json_open(j, '[');
	if (!is_empty_text(text)) {
		json_open(j, '{');
		json_key_z(j, "type", "text");
		member_put(j, "text", text);
		json_close(j, '}');
	}
	for (struct json_iter it = json_iter_of(images); json_next_elem(&it, &image);) {
		if (image.type != JSON_STRING)
			return CGN_FAIL(err, INVALID, "images has an element that is not a string of base64");
		image_put(j, image);
	}
	json_close(j, ']');
	return CGN_OK;
}

/* A tool call whose result has not come yet. Ollama's results name the tool, OpenAI's the call. */
struct pending {
	struct cgn_str name; /* A JSON string; empty: unknown. */
	struct json_val id;  /* The client's own; raw.p NULL: |number| makes it. */
	unsigned number;
};
struct messages {
	struct json_out *j;
	struct pending pending[PENDING_MAX];
	size_t n;
	unsigned calls;
};

static void id_put(struct json_out *j, const char *key, const struct pending *p)
{
	char id[32];
	(void)snprintf(id, sizeof id, "call_%u", p->number);
	if (p->id.raw.p != NULL)
		member_put(j, key, p->id);
	else
		json_key_z(j, key, id);
}

static CGN_RC call_put(struct messages *m, struct json_val call, struct cgn_err *err)
{
	struct json_val function, name = {0}, arguments = {0}, id = {0};
	if (!json_get(call, "function", &function) || !json_get(function, "name", &name) ||
		name.type != JSON_STRING)
		return CGN_FAIL(err, INVALID, "tool_calls has an element without function.name");
	if (m->n == PENDING_MAX)
		return CGN_FAIL(err, INVALID, "messages has more than %d tool calls without a result",
			PENDING_MAX);
	struct pending *p = &m->pending[m->n++];
	bool named = json_get(call, "id", &id) && id.type == JSON_STRING && id.raw.n > 2;
	*p = (struct pending){name.raw, named ? id : (struct json_val){0}, m->calls++};
	json_open(m->j, '{');
	id_put(m->j, "id", p);
	json_key_z(m->j, "type", "function");
	json_key_open(m->j, "function", '{');
	member_put(m->j, "name", name);
	if (json_get(function, "arguments", &arguments) && arguments.type == JSON_STRING)
		member_put(m->j, "arguments", arguments);
	else
		json_key_str(m->j, "arguments", ollama_is_there(arguments) ? arguments.raw : CGN_STR("{}"));
	json_close(m->j, '}');
	json_close(m->j, '}');
	return CGN_OK;
}

static CGN_RC calls_put(struct messages *m, struct json_val calls, struct cgn_err *err)
{
	struct json_val call;
	if (!ollama_is_there(calls) || is_empty_list(calls))
		return CGN_OK;
	if (calls.type != JSON_ARRAY)
		return CGN_FAIL(err, INVALID, "tool_calls is not a list");
	json_key_open(m->j, "tool_calls", '[');
	for (struct json_iter it = json_iter_of(calls); json_next_elem(&it, &call);)
		CGN_TRY(call_put(m, call, err));
	json_close(m->j, ']');
	return CGN_OK;
}

/* Put the id of the call that a result belongs to: the one that it names, else the oldest call of its tool, else
 * the oldest call. */
static void result_id_put(struct messages *m, struct json_val id, struct json_val name)
{
	struct pending first = {0};
	size_t at = 0;
	if (ollama_is_there(id) && id.type == JSON_STRING) {
		member_put(m->j, "tool_call_id", id);
		for (at = 0; at < m->n && !cgn_str_eq(m->pending[at].id.raw, id.raw); at++)
			;
	} else {
		for (at = 0; at < m->n && !cgn_str_eq(m->pending[at].name, name.raw); at++)
			;
		if (at == m->n)
			at = 0;
		id_put(m->j, "tool_call_id", m->n > 0 ? &m->pending[at] : &first);
	}
	if (at >= m->n)
		return;
	memmove(&m->pending[at], &m->pending[at + 1], (m->n - at - 1) * sizeof m->pending[0]);
	m->n--;
}

enum message_key {
	MSG_ROLE,
	MSG_CONTENT,
	MSG_IMAGES,
	MSG_CALLS,
	MSG_TOOL,
	MSG_CALL_ID,
	MSG_THINKING,
	MSG_KEYS
};

static CGN_RC message_put(struct messages *m, struct json_val message, struct cgn_err *err)
{
	static const char *const keys[MSG_KEYS] = {"role", "content", "images", "tool_calls", "tool_name",
		"tool_call_id", "thinking"};
	struct json_val v[MSG_KEYS];
	json_pick(message, keys, MSG_KEYS, v);
	if (v[MSG_ROLE].raw.p == NULL || v[MSG_ROLE].type != JSON_STRING)
		return CGN_FAIL(err, INVALID, "messages has an element without a role");
	json_open(m->j, '{');
	member_put(m->j, "role", v[MSG_ROLE]);
	CGN_TRY(content_put(m->j, v[MSG_CONTENT], v[MSG_IMAGES], err));
	if (!is_empty_text(v[MSG_THINKING]))
		member_put(m->j, "reasoning_content", v[MSG_THINKING]);
	CGN_TRY(calls_put(m, v[MSG_CALLS], err));
	if (cgn_str_is(v[MSG_ROLE].raw, "\"tool\""))
		result_id_put(m, v[MSG_CALL_ID], v[MSG_TOOL]);
	json_close(m->j, '}');
	return CGN_OK;
}

static CGN_RC chat_put(struct json_out *j, const struct members *m, struct cgn_err *err)
{
	struct messages all = {.j = j};
	struct json_val message;
	json_key_open(j, "messages", '[');
	for (struct json_iter it = json_iter_of(m->v[BODY_MESSAGES]); json_next_elem(&it, &message);)
		CGN_TRY(message_put(&all, message, err));
	json_close(j, ']');
	if (!is_empty_list(m->v[BODY_TOOLS]))
		member_put(j, "tools", m->v[BODY_TOOLS]);
	logprobs_put(j, m);
	return common_put(j, m, err);
}

/* ---- a single prompt ---- */

static CGN_RC generate_put(struct json_out *j, const struct members *m, struct cgn_err *err)
{
	json_key_open(j, "messages", '[');
	if (!is_empty_text(m->v[BODY_SYSTEM])) {
		json_open(j, '{');
		json_key_z(j, "role", "system");
		member_put(j, "content", m->v[BODY_SYSTEM]);
		json_close(j, '}');
	}
	json_open(j, '{');
	json_key_z(j, "role", "user");
	CGN_TRY(content_put(j, m->v[BODY_PROMPT], m->v[BODY_IMAGES], err));
	json_close(j, '}');
	json_close(j, ']');
	logprobs_put(j, m);
	return common_put(j, m, err);
}

static CGN_RC raw_put(struct json_out *j, const struct members *m, struct cgn_err *err)
{
	if (ollama_is_there(m->v[BODY_IMAGES]) && !is_empty_list(m->v[BODY_IMAGES]))
		return CGN_FAIL(err, INVALID, "images can't be given together with raw or suffix");
	member_put(j, "prompt", m->v[BODY_PROMPT]);
	if (!is_empty_text(m->v[BODY_SUFFIX]))
		member_put(j, "suffix", m->v[BODY_SUFFIX]);
	return common_put(j, m, err);
}

/* Refuse options that only Ollama's own engine knows: ignoring them would change the answer. */
static CGN_RC generate_check(const struct members *m, struct cgn_err *err)
{
	if (ollama_is_there(m->v[BODY_PROMPT]) && m->v[BODY_PROMPT].type != JSON_STRING)
		return CGN_FAIL(err, INVALID, "prompt is not a string");
	if (!is_empty_text(m->v[BODY_TEMPLATE]))
		return CGN_FAIL(err, INVALID,
			"template is not supported: the engine has the model's template; use raw for a prompt without one");
	if (ollama_is_there(m->v[BODY_CONTEXT]) && !is_empty_list(m->v[BODY_CONTEXT]))
		return CGN_FAIL(err, INVALID,
			"context is not supported: send the conversation to /api/chat instead");
	return CGN_OK;
}

static CGN_RC generate_read(struct json_out *j, const struct members *m, struct ollama_request *out,
	struct cgn_err *err)
{
	CGN_TRY(generate_check(m, err));
	bool raw = flag_of(m, BODY_RAW, false) || !is_empty_text(m->v[BODY_SUFFIX]);
	out->path = raw ? "/v1/completions" : "/v1/chat/completions";
	out->loads = is_empty_text(m->v[BODY_PROMPT]) && is_empty_text(m->v[BODY_SUFFIX]) &&
		(!ollama_is_there(m->v[BODY_IMAGES]) || is_empty_list(m->v[BODY_IMAGES]));
	if (out->loads)
		return CGN_OK;
	return raw ? raw_put(j, m, err) : generate_put(j, m, err);
}

/* ---- vectors ---- */

/* A list of numbers is one input, as tokens. */
static size_t inputs_count(struct json_val input)
{
	struct json_val one;
	size_t n = 0;
	if (input.raw.p == NULL || input.type != JSON_ARRAY)
		return 1;
	for (struct json_iter it = json_iter_of(input); json_next_elem(&it, &one); n++)
		if (one.type == JSON_NUMBER)
			return 1;
	return n;
}

static CGN_RC embed_read(enum ollama_api api, struct json_out *j, const struct members *m,
	struct ollama_request *out, struct cgn_err *err)
{
	const struct json_val input = m->v[api == OLLAMA_EMBED ? BODY_INPUT : BODY_PROMPT];
	const char *key = api == OLLAMA_EMBED ? "input" : "prompt";
	out->path = "/v1/embeddings";
	out->stream = false;
	out->loads = is_empty_text(input) || is_empty_list(input);
	out->vectors = inputs_count(input);
	if (!out->loads && input.type != JSON_STRING && !(api == OLLAMA_EMBED && input.type == JSON_ARRAY))
		return CGN_FAIL(err, INVALID, "%s is not a text%s", key,
			api == OLLAMA_EMBED ? " or a list of texts" : "");
	member_put(j, "input", input);
	json_key_z(j, "encoding_format", "float");
	member_put(j, "dimensions", m->v[BODY_DIMENSIONS]);
	return CGN_OK;
}

/* ---- all ---- */

static CGN_RC chat_read(struct json_out *j, const struct members *m, struct ollama_request *out,
	struct cgn_err *err)
{
	const struct json_val messages = m->v[BODY_MESSAGES];
	out->path = "/v1/chat/completions";
	out->loads = !ollama_is_there(messages) || is_empty_list(messages);
	if (!out->loads && messages.type != JSON_ARRAY)
		return CGN_FAIL(err, INVALID, "messages is not a list");
	return out->loads ? CGN_OK : chat_put(j, m, err);
}

static CGN_RC keep_alive_read(struct json_val v, struct ollama_request *out, struct cgn_err *err)
{
	bool quoted = v.type == JSON_STRING;
	struct cgn_str text = quoted ? (struct cgn_str){v.raw.p + 1, v.raw.n - 2} : v.raw;
	if (!ollama_is_there(v))
		return CGN_OK;
	if (!ollama_keep_alive_read(text, quoted, &out->keep_alive_ms))
		return CGN_FAIL(err, INVALID,
			"keep_alive is %.*s, must be a number of seconds or a duration such as \"5m\"; -1 keeps the model, 0 unloads it",
			(int)(v.raw.n < 64 ? v.raw.n : 64), v.raw.p);
	out->keeps = true;
	return CGN_OK;
}

CGN_RC ollama_request_read(enum ollama_api api, struct json_val body, struct cgn_str model,
	struct ollama_request *out, struct cgn_buf *to, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_out j = json_out_to(&b);
	struct members m;
	CGN_MUST(api != OLLAMA_NONE);
	json_pick(body, body_keys, BODY_KEYS, m.v);
	*out = (struct ollama_request){.stream = flag_of(&m, BODY_STREAM, true)};
	json_open(&j, '{');
	json_key_str(&j, "model", model);
	if (api == OLLAMA_CHAT)
		CGN_TRY(chat_read(&j, &m, out, err));
	else if (api == OLLAMA_GENERATE)
		CGN_TRY(generate_read(&j, &m, out, err));
	else
		CGN_TRY(embed_read(api, &j, &m, out, err));
	json_close(&j, '}');
	CGN_TRY(keep_alive_read(m.v[BODY_KEEP_ALIVE], out, err));
	out->unloads = out->loads && out->keeps && out->keep_alive_ms == 0;
	if (b.bad)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the request");
	if (!out->loads)
		cgn_buf_str(to, cgn_buf_view(&b));
	return to->bad ? CGN_FAIL(err, NO_MEMORY, "no memory for the request") : CGN_OK;
}
