/* SPDX-License-Identifier: Apache-2.0 */
/* answer: an engine's events, or its whole body, to Ollama's objects. */
#include <stdlib.h>

#include "policy/ollama/ollama_priv.h"

#define ERROR_SHOWN ((size_t)500) /* Most bytes shown of an error that is no JSON. */

static bool answer_embeds(const struct ollama_answer *a)
{
	return a->api == OLLAMA_EMBED || a->api == OLLAMA_EMBEDDINGS;
}

/* ---- texts that are gathered ---- */

/* Append the inside of the JSON string |v| to |text|, the beginning of a JSON string. */
static void text_add(struct cgn_buf *text, struct json_val v)
{
	if (v.raw.n <= 2)
		return;
	if (text->n == 0)
		cgn_buf_char(text, '"');
	cgn_buf_add(text, v.raw.p + 1, v.raw.n - 2);
}

static struct cgn_str text_end(struct cgn_buf *text, char end)
{
	if (text->n == 0)
		return (struct cgn_str){NULL, 0};
	cgn_buf_char(text, end);
	return cgn_buf_view(text);
}

/* ---- tool calls ---- */

static struct ollama_call *call_at(struct ollama_answer *a, uint64_t index)
{
	if (index >= OLLAMA_CALLS_MAX)
		return NULL;
	if (index >= a->n_calls) {
		struct ollama_call *v = realloc(a->calls, (index + 1) * sizeof *v);
		if (v == NULL)
			return NULL;
		for (size_t i = a->n_calls; i <= index; i++)
			v[i] = (struct ollama_call){.arguments.limit = OLLAMA_TEXT_MAX};
		a->calls = v;
		a->n_calls = index + 1;
	}
	return &a->calls[index];
}

static bool string_at(struct json_val object, const char *key, struct json_val *out)
{
	return json_get(object, key, out) && out->type == JSON_STRING && out->raw.n > 2;
}

/* Add a piece of a tool call; without an index, the pieces are whole calls in order. */
static bool call_add(struct ollama_answer *a, struct json_val piece, size_t position)
{
	struct json_val function = {0}, v;
	struct ollama_call *call = call_at(a, json_get_u64(piece, "index", position));
	if (call == NULL)
		return false;
	if (call->id.n == 0 && string_at(piece, "id", &v))
		cgn_buf_str(&call->id, v.raw);
	if (!json_get(piece, "function", &function))
		return true;
	if (call->name.n == 0 && string_at(function, "name", &v))
		cgn_buf_str(&call->name, v.raw);
	if (string_at(function, "arguments", &v))
		json_str_to(v, &call->arguments);
	return !call->id.bad && !call->name.bad && !call->arguments.bad;
}

static void calls_add(struct ollama_answer *a, struct json_val list)
{
	struct json_val piece;
	size_t position = 0;
	if (list.raw.p == NULL || list.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &piece); position++)
		if (!a->failed && !call_add(a, piece, position))
			ollama_error_put(a, CGN_STR("the answer has too many tool calls, or too long ones"));
}

/* Return false for a call whose arguments are not an object: the answer has failed then. */
static bool calls_check(struct ollama_answer *a)
{
	struct json_val v;
	for (size_t i = 0; i < a->n_calls; i++) {
		struct cgn_buf *text = &a->calls[i].arguments;
		if (text->n == 0)
			continue;
		if (!cgn_ok(json_parse(cgn_buf_view(text), &v, NULL, NULL)) || v.type != JSON_OBJECT) {
			ollama_error_put(a,
				CGN_STR("the engine's tool call has arguments that are not a JSON object"));
			return false;
		}
	}
	return true;
}

/* ---- events ---- */

static void error_relay(struct ollama_answer *a, struct json_val error)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val message;
	if (error.type == JSON_OBJECT && string_at(error, "message", &message))
		json_str_to(message, &text);
	else if (error.type == JSON_STRING)
		json_str_to(error, &text);
	else
		cgn_buf_str(&text, error.raw);
	ollama_error_put(a, cgn_buf_view(&text));
}

static void counts_take(struct ollama_answer *a, struct json_val root)
{
	struct json_val v;
	if (json_get(root, "usage", &v) && v.type == JSON_OBJECT) {
		a->prompt_tokens = json_get_u64(v, "prompt_tokens", a->prompt_tokens);
		a->answer_tokens = json_get_u64(v, "completion_tokens", a->answer_tokens);
	}
	if (json_get(root, "timings", &v) && v.type == JSON_OBJECT) {
		a->prompt_ms = json_get_f64(v, "prompt_ms", a->prompt_ms);
		a->answer_ms = json_get_f64(v, "predicted_ms", a->answer_ms);
	}
}

static void logprobs_take(struct ollama_answer *a, struct json_val choice, struct json_val *out)
{
	struct json_val logprobs;
	*out = (struct json_val){0};
	if (!json_get(choice, "logprobs", &logprobs) || !json_get(logprobs, "content", out) ||
		out->type != JSON_ARRAY) {
		*out = (struct json_val){0};
		return;
	}
	if (a->lines || out->raw.n <= 2)
		return;
	cgn_buf_char(&a->logprobs, a->logprobs.n == 0 ? '[' : ',');
	cgn_buf_add(&a->logprobs, out->raw.p + 1, out->raw.n - 2);
}

static struct json_val text_of(struct json_val object, const char *key, const char *other)
{
	struct json_val v;
	if (string_at(object, key, &v) || (other != NULL && string_at(object, other, &v)))
		return v;
	return (struct json_val){0};
}

static void tokens_seen(struct ollama_answer *a)
{
	if (a->first == 0)
		a->first = a->now->elapsed;
	a->last = a->now->elapsed;
}

static void choice_take(struct ollama_answer *a, struct json_val choice)
{
	struct json_val delta = {0}, finish, calls = {0}, logprobs;
	if (!json_get(choice, "delta", &delta))
		(void)json_get(choice, "message", &delta);
	struct json_val content =
		delta.raw.p != NULL ? text_of(delta, "content", NULL) : text_of(choice, "text", NULL);
	struct json_val thinking =
		delta.raw.p != NULL ? text_of(delta, "reasoning_content", "reasoning") : (struct json_val){0};
	if (delta.raw.p != NULL && json_get(delta, "tool_calls", &calls))
		calls_add(a, calls);
	logprobs_take(a, choice, &logprobs);
	if (json_get(choice, "finish_reason", &finish) && finish.type == JSON_STRING)
		a->is_length = cgn_str_is(finish.raw, "\"length\"");
	if (content.raw.p != NULL || thinking.raw.p != NULL || calls.raw.p != NULL)
		tokens_seen(a);
	if (a->failed)
		return;
	if (a->lines && (content.raw.p != NULL || thinking.raw.p != NULL)) {
		ollama_line_put(a,
			&(struct ollama_line){.content = content.raw,
				.thinking = thinking.raw,
				.logprobs = logprobs.raw});
		return;
	}
	text_add(&a->content, content);
	text_add(&a->thinking, thinking);
	if (a->content.bad || a->thinking.bad || a->logprobs.bad)
		ollama_error_put(a, CGN_STR("the answer is longer than 16 MiB: ask for a stream"));
}

static void chunk_take(struct ollama_answer *a, struct json_val root)
{
	struct json_val error, choices, choice;
	if (json_get(root, "error", &error) && ollama_is_there(error)) {
		error_relay(a, error);
		return;
	}
	counts_take(a, root);
	if (!json_get(root, "choices", &choices) || choices.type != JSON_ARRAY)
		return;
	struct json_iter it = json_iter_of(choices);
	if (json_next_elem(&it, &choice) && choice.type == JSON_OBJECT)
		choice_take(a, choice);
}

static void answer_finish(struct ollama_answer *a)
{
	if (a->done || a->failed || !calls_check(a))
		return;
	a->done = true;
	if (a->lines && a->n_calls > 0)
		ollama_line_put(a, &(struct ollama_line){.calls = true});
	ollama_line_put(a,
		&(struct ollama_line){.content = text_end(&a->content, '"'),
			.thinking = text_end(&a->thinking, '"'),
			.logprobs = text_end(&a->logprobs, ']'),
			.calls = !a->lines,
			.last = true});
}

static void on_event(void *arg, struct cgn_str name, struct cgn_str data)
{
	struct ollama_answer *a = arg;
	struct json_val root;
	(void)name;
	if (a->done || a->failed)
		return;
	if (cgn_str_is(data, "[DONE]"))
		answer_finish(a);
	else if (!cgn_ok(json_parse(data, &root, NULL, NULL)) || root.type != JSON_OBJECT)
		ollama_error_put(a, CGN_STR("the engine sent an event that is not a JSON object"));
	else
		chunk_take(a, root);
}

/* ---- whole bodies ---- */

static void error_take(struct ollama_answer *a, struct cgn_str body)
{
	static const char *const keys[] = {"error", "detail", "message"};
	struct json_val root, v;
	if (cgn_ok(json_parse(body, &root, NULL, NULL)) && root.type == JSON_OBJECT)
		for (size_t i = 0; i < CGN_COUNT(keys); i++)
			if (json_get(root, keys[i], &v) && ollama_is_there(v)) {
				error_relay(a, v);
				return;
			}
	body.n = body.n < ERROR_SHOWN ? body.n : ERROR_SHOWN;
	ollama_error_put(a, body.n > 0 ? body : CGN_STR("the engine answered with an error and no text"));
}

/* Put the vectors of |data|; false: it has another shape. */
static bool vectors_put(struct json_out *j, struct json_val data, bool only_first)
{
	struct json_val item, vector;
	uint64_t n = 0;
	for (struct json_iter it = json_iter_of(data); json_next_elem(&it, &item); n++) {
		if (!json_get(item, "embedding", &vector) || vector.type != JSON_ARRAY ||
			json_get_u64(item, "index", n) != n)
			return false;
		json_put_flat(j, vector.raw);
		if (only_first)
			return true;
	}
	return !only_first;
}

static void vectors_take(struct ollama_answer *a, struct json_val root)
{
	size_t before = a->out->n;
	struct json_val data;
	struct json_out j = json_out_to(a->out);
	bool sound = json_get(root, "data", &data) && data.type == JSON_ARRAY;
	counts_take(a, root);
	json_open(&j, '{');
	if (a->api == OLLAMA_EMBED) {
		json_key_str(&j, "model", a->model);
		json_key_open(&j, "embeddings", '[');
		sound = sound && vectors_put(&j, data, false);
		json_close(&j, ']');
		json_key_u64(&j, "total_duration", a->now->elapsed);
		json_key_u64(&j, "load_duration", 0);
		json_key_u64(&j, "prompt_eval_count", a->prompt_tokens);
	} else {
		json_key(&j, "embedding");
		sound = sound && vectors_put(&j, data, true);
	}
	json_close(&j, '}');
	a->done = true;
	if (sound)
		return;
	a->out->n = before;
	ollama_error_put(a, CGN_STR("the engine's answer has no list of vectors"));
}

static void body_take(struct ollama_answer *a)
{
	struct json_val root;
	if (a->status >= 300)
		error_take(a, cgn_buf_view(&a->body));
	else if (a->body.bad)
		ollama_error_put(a, CGN_STR("the engine's answer is longer than 64 MiB"));
	else if (!cgn_ok(json_parse(cgn_buf_view(&a->body), &root, NULL, NULL)) || root.type != JSON_OBJECT)
		ollama_error_put(a, CGN_STR("the engine's answer is not a JSON object"));
	else if (answer_embeds(a))
		vectors_take(a, root);
	else
		chunk_take(a, root);
	if (!answer_embeds(a) && !a->failed)
		answer_finish(a);
}

/* ---- life ---- */

struct ollama_answer *ollama_answer_new(enum ollama_api api, bool stream, struct cgn_str model)
{
	struct ollama_answer *a = calloc(1, sizeof *a);
	char *copy = cgn_str_dupz(model);
	if (a == NULL || copy == NULL) {
		free(a);
		free(copy);
		return NULL;
	}
	a->tag = OLLAMA_ANSWER_TAG;
	a->api = api;
	a->stream = stream;
	a->status = 502;
	a->model = (struct cgn_str){copy, model.n};
	a->body.limit = OLLAMA_BODY_MAX;
	a->content.limit = a->thinking.limit = a->logprobs.limit = OLLAMA_TEXT_MAX;
	sse_scan_init(&a->scan, OLLAMA_EVENT_MAX, on_event, a);
	return a;
}

void ollama_answer_free(struct ollama_answer **take)
{
	struct ollama_answer *a = *take;
	*take = NULL;
	if (a == NULL)
		return;
	CGN_LIVE(a, OLLAMA_ANSWER_TAG);
	for (size_t i = 0; i < a->n_calls; i++) {
		cgn_buf_fini(&a->calls[i].id);
		cgn_buf_fini(&a->calls[i].name);
		cgn_buf_fini(&a->calls[i].arguments);
	}
	free(a->calls);
	sse_scan_fini(&a->scan);
	cgn_buf_fini(&a->body);
	cgn_buf_fini(&a->content);
	cgn_buf_fini(&a->thinking);
	cgn_buf_fini(&a->logprobs);
	free((void *)(uintptr_t)a->model.p);
	a->tag = 0;
	free(a);
}

bool ollama_answer_begin(struct ollama_answer *a, int status, bool events)
{
	CGN_LIVE(a, OLLAMA_ANSWER_TAG);
	a->status = status;
	a->events = events && status == 200 && !answer_embeds(a);
	a->lines = a->stream && a->events;
	return a->lines;
}

void ollama_answer_feed(struct ollama_answer *a, struct cgn_str data, const struct ollama_time *now,
	struct cgn_buf *out)
{
	CGN_LIVE(a, OLLAMA_ANSWER_TAG);
	if (a->done || a->failed)
		return;
	a->out = out;
	a->now = now;
	if (!a->events) {
		cgn_buf_str(&a->body, data);
		return;
	}
	sse_scan_feed(&a->scan, data);
	if (a->scan.lost_events > 0 && !a->failed && !a->done)
		ollama_error_put(a, CGN_STR("the engine sent an event longer than 1 MiB"));
}

void ollama_answer_end(struct ollama_answer *a, const struct ollama_time *now, struct cgn_buf *out)
{
	CGN_LIVE(a, OLLAMA_ANSWER_TAG);
	a->out = out;
	a->now = now;
	if (a->done || a->failed)
		return;
	if (a->events)
		answer_finish(a);
	else
		body_take(a);
}

void ollama_answer_cut(struct ollama_answer *a, const char *why, struct cgn_buf *out)
{
	CGN_LIVE(a, OLLAMA_ANSWER_TAG);
	a->out = out;
	if (!a->done && !a->failed)
		ollama_error_put(a, cgn_str_of(why));
}

int ollama_answer_status(const struct ollama_answer *a)
{
	return a->status;
}

const char *ollama_answer_type(const struct ollama_answer *a)
{
	return a->stream && a->status == 200 ? "application/x-ndjson" : "application/json";
}
