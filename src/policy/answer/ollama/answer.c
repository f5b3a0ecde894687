/* SPDX-License-Identifier: Apache-2.0 */
/* answer: an engine's events, or its whole body, to Ollama's objects. */
#include <stdlib.h>

#include "base/apierror/apierror.h"
#include "policy/answer/ollama/ollama_priv.h"

#define ERROR_SHOWN ((size_t)500) /* Most bytes shown of an error other than JSON. */

static bool answer_embeds(const struct ollama_answer *a)
{
	return a->api == OLLAMA_EMBED || a->api == OLLAMA_EMBEDDINGS;
}

/* ---- texts that are gathered ---- */

static struct cgn_str text_end(struct cgn_buf *text, char end)
{
	if (text->n == 0)
		return (struct cgn_str){NULL, 0};
	cgn_buf_char(text, end);
	return cgn_buf_view(text);
}

/* ---- events ---- */

static void error_relay(struct ollama_answer *a, struct json_val error)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	apierror_text(error, &text);
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

static void tokens_seen(struct ollama_answer *a)
{
	if (a->first == 0)
		a->first = a->now->elapsed;
	a->last = a->now->elapsed;
}

/* Take why the answer ended. A reason that is neither an end nor a failure is told as it is. */
static void reason_take(struct ollama_answer *a, struct json_val finish)
{
	static const struct {
		const char *reason, *told;
	} reasons[] = {{"stop", "stop"}, {"eos_token", "stop"}, {"end_turn", "stop"},
		{"stop_sequence", "stop"}, {"tool_calls", "stop"}, {"tool_use", "stop"},
		{"function_call", "stop"}, {"length", "length"}, {"max_tokens", "length"},
		{"model_length", "length"}};
	char text[sizeof a->reason] = "";
	struct cgn_buf b = cgn_buf_over(text, sizeof text - 1);
	json_str_to(finish, &b);
	text[b.n] = '\0';
	a->ended = true;
	a->broken = apierror_reason(cgn_str_of(text));
	(void)cgn_str_copyz(a->reason, sizeof a->reason, cgn_str_of(text));
	for (size_t i = 0; i < CGN_COUNT(reasons); i++)
		if (cgn_str_eq_nocase(cgn_str_trim(cgn_str_of(text)), cgn_str_of(reasons[i].reason)))
			(void)cgn_str_copyz(a->reason, sizeof a->reason, cgn_str_of(reasons[i].told));
}

/* A failed answer does not count as an answer, however much of it came. */
static void reason_check(struct ollama_answer *a)
{
	char why[sizeof a->reason + 64];
	if (!a->broken || a->failed)
		return;
	(void)snprintf(why, sizeof why, "the engine ended its answer with the reason \"%s\"", a->reason);
	ollama_error_put(a, cgn_str_of(why));
}

static void said_relay(struct ollama_answer *a, const struct ollama_said *said, struct json_val logprobs)
{
	if (a->lines && (said->content.n > 0 || said->thinking.n > 0 || logprobs.raw.n > 2)) {
		ollama_line_put(a,
			&(struct ollama_line){.content = said->content,
				.thinking = said->thinking,
				.logprobs = logprobs.raw});
		return;
	}
	ollama_text_add(&a->content, said->content);
	ollama_text_add(&a->thinking, said->thinking);
	if (a->content.bad || a->thinking.bad || a->logprobs.bad)
		ollama_error_put(a, CGN_STR("the answer is longer than 16 MiB: ask for a stream"));
}

static void choice_take(struct ollama_answer *a, struct json_val choice)
{
	CGN_ON_EXIT(ollama_said_fini) struct ollama_said said = {0};
	struct json_val finish, logprobs, error;
	size_t calls = a->n_calls;
	if (apierror_find(choice, &error)) {
		error_relay(a, error);
		return;
	}
	if (!ollama_said_read(a, choice, &said))
		return;
	logprobs_take(a, choice, &logprobs);
	if (json_get(choice, "finish_reason", &finish) && ollama_is_there(finish)) {
		if (finish.type != JSON_STRING) {
			ollama_error_put(a, CGN_STR("the engine's finish_reason is not a text"));
			return;
		}
		reason_take(a, finish);
	}
	if (said.content.n > 0 || said.thinking.n > 0 || said.calls || a->n_calls > calls)
		tokens_seen(a);
	said_relay(a, &said, logprobs);
	reason_check(a);
}

/* Return true for an object without choices that is known to be harmless: empty, a ping, counts, or a chunk by name. */
static bool is_aside(struct json_val root)
{
	struct json_val member;
	struct cgn_str key;
	struct json_iter it = json_iter_of(root);
	if (!json_next_member(&it, &key, &member))
		return true;
	if ((json_get(root, "usage", &member) || json_get(root, "timings", &member)) &&
		member.type == JSON_OBJECT)
		return true;
	if (json_get(root, "type", &member) && cgn_str_is(member.raw, "\"ping\""))
		return true;
	return json_get(root, "object", &member) &&
		(cgn_str_is(member.raw, "\"chat.completion.chunk\"") ||
			cgn_str_is(member.raw, "\"text_completion\""));
}

/* Find the list of choices. False: there is none, and the answer has failed if it should have one. */
static bool choices_find(struct ollama_answer *a, struct json_val root, struct json_val *out)
{
	bool there = json_get(root, "choices", out) && ollama_is_there(*out);
	if (there && out->type != JSON_ARRAY)
		ollama_error_put(a, CGN_STR("the engine's choices are not a list"));
	else if (!there && !is_aside(root))
		ollama_error_put(a, CGN_STR("the engine sent an object without choices"));
	return there && !a->failed;
}

static void chunk_take(struct ollama_answer *a, struct json_val root)
{
	struct json_val error, choices, choice;
	if (apierror_find(root, &error)) {
		error_relay(a, error);
		return;
	}
	counts_take(a, root);
	if (!choices_find(a, root, &choices))
		return;
	/* The request asked for one answer: take the choice 0, or one without an index. */
	for (struct json_iter it = json_iter_of(choices); !a->failed && json_next_elem(&it, &choice);)
		if (json_get_u64(choice, "index", 0) == 0) {
			choice_take(a, choice);
			return;
		}
}

/* The engine's answer is over. Bytes of it that are not understood are an error, never an end. */
static void answer_finish(struct ollama_answer *a)
{
	if (a->done || a->failed)
		return;
	if (!a->answered)
		ollama_error_put(a, CGN_STR("the engine ended its answer without a choice in it"));
	else if (a->events && !a->ended)
		ollama_error_put(a,
			CGN_STR("the engine's answer stopped without a finish_reason and without [DONE]"));
	if (a->failed || !ollama_calls_check(a))
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

/* |data| is an error because of the event's name, whatever its shape is. */
static void error_event(struct ollama_answer *a, struct cgn_str data)
{
	struct json_val root, error;
	if (cgn_str_trim(data).n == 0)
		ollama_error_put(a, CGN_STR("the engine sent an error without a text"));
	else if (!cgn_ok(json_parse(data, &root, NULL, NULL)))
		ollama_error_put(a, data);
	else
		error_relay(a, apierror_find(root, &error) ? error : root);
}

/* A line other than a field of an event: llama.cpp wrote "error: {...}" for a time, and servers that fail put
 * their error in as it is. */
static void on_line(void *arg, struct cgn_str line, struct cgn_str field, struct cgn_str value)
{
	struct ollama_answer *a = arg;
	struct json_val root, error;
	const struct cgn_str text = cgn_str_trim(line);
	if (a->done || a->failed || text.n == 0)
		return;
	if (cgn_str_eq_nocase(cgn_str_trim(field), CGN_STR("error")))
		error_event(a, value);
	else if (text.p[0] != '{' && text.p[0] != '[')
		return;
	else if (cgn_ok(json_parse(line, &root, NULL, NULL)) && apierror_find(root, &error))
		error_relay(a, error);
	else
		ollama_error_put(a, CGN_STR("the engine sent JSON that is not in an event"));
}

static void on_event(void *arg, struct cgn_str name, struct cgn_str data)
{
	struct ollama_answer *a = arg;
	struct json_val root;
	bool failed = cgn_str_eq_nocase(name, CGN_STR("error"));
	if (a->done || a->failed || (!failed && cgn_str_trim(data).n == 0))
		return;
	if (cgn_str_is(cgn_str_trim(data), "[DONE]")) {
		a->ended = true;
		answer_finish(a);
	} else if (failed) {
		error_event(a, data);
	} else if (!cgn_ok(json_parse(data, &root, NULL, NULL)) || root.type != JSON_OBJECT) {
		ollama_error_put(a, CGN_STR("the engine sent an event that is not a JSON object"));
	} else {
		chunk_take(a, root);
	}
}

/* ---- whole bodies ---- */

static void error_take(struct ollama_answer *a, struct cgn_str body)
{
	struct json_val root, v;
	if (cgn_ok(json_parse(body, &root, NULL, NULL)) &&
		(apierror_find(root, &v) || json_get(root, "message", &v))) {
		error_relay(a, v);
		return;
	}
	body.n = body.n < ERROR_SHOWN ? body.n : ERROR_SHOWN;
	ollama_error_put(a, body.n > 0 ? body : CGN_STR("the engine answered with an error and no text"));
}

/* Return true if |v| is a vector: a list of numbers, of which the first one is looked at. */
static bool is_vector(struct json_val v)
{
	struct json_val first;
	if (v.type != JSON_ARRAY)
		return false;
	struct json_iter it = json_iter_of(v);
	return json_next_elem(&it, &first) && first.type == JSON_NUMBER;
}

/* Sort the vectors of |data| by their index into |v|, of |n|; false: there is another number of them, or one has
 * another shape. */
static bool vectors_sort(struct json_val data, struct cgn_str *v, size_t n)
{
	struct json_val item, vector;
	size_t k = 0;
	for (struct json_iter it = json_iter_of(data); json_next_elem(&it, &item); k++) {
		uint64_t at = json_get_u64(item, "index", k);
		if (at >= n || v[at].p != NULL || !json_get(item, "embedding", &vector) || !is_vector(vector))
			return false;
		v[at] = vector.raw;
	}
	return k == n;
}

static size_t elements_count(struct json_val list)
{
	struct json_val item;
	size_t n = 0;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &item);)
		n++;
	return n;
}

/* Put the vectors of |data|; false: they are not those that were asked for. */
static bool vectors_put(const struct ollama_answer *a, struct json_out *j, struct json_val data)
{
	size_t n = elements_count(data);
	struct cgn_str *v = n > 0 ? calloc(n, sizeof *v) : NULL;
	bool sound = v != NULL && (a->vectors == 0 || n == a->vectors) && vectors_sort(data, v, n);
	for (size_t i = 0; sound && i < (a->api == OLLAMA_EMBED ? n : 1); i++)
		json_put_flat(j, v[i]);
	free(v);
	return sound;
}

static void vectors_take(struct ollama_answer *a, struct json_val root)
{
	size_t before = a->out->n;
	struct json_val data, error;
	struct json_out j = json_out_to(a->out);
	if (apierror_find(root, &error)) {
		error_relay(a, error);
		return;
	}
	bool sound = json_get(root, "data", &data) && data.type == JSON_ARRAY;
	counts_take(a, root);
	json_open(&j, '{');
	if (a->api == OLLAMA_EMBED) {
		json_key_str(&j, "model", a->model);
		json_key_open(&j, "embeddings", '[');
		sound = sound && vectors_put(a, &j, data);
		json_close(&j, ']');
		json_key_u64(&j, "total_duration", a->now->elapsed);
		json_key_u64(&j, "load_duration", 0);
		json_key_u64(&j, "prompt_eval_count", a->prompt_tokens);
	} else {
		json_key(&j, "embedding");
		sound = sound && vectors_put(a, &j, data);
	}
	json_close(&j, '}');
	a->done = true;
	if (sound)
		return;
	a->out->n = before;
	ollama_error_put(a, CGN_STR("the engine's answer is not a list with a vector for each input"));
}

static void body_take(struct ollama_answer *a)
{
	struct json_val root;
	if (a->encoded)
		ollama_error_put(a,
			CGN_STR("the engine's answer is compressed, which the request did not allow: switch compression off at the engine, or at the proxy before it"));
	else if (a->status >= 300)
		error_take(a, cgn_buf_view(&a->body));
	else if (a->body.bad)
		ollama_error_put(a, CGN_STR("the engine's answer is longer than 64 MiB"));
	else if (!cgn_ok(json_parse(cgn_buf_view(&a->body), &root, NULL, NULL)) || root.type != JSON_OBJECT)
		ollama_error_put(a, CGN_STR("the engine's answer is not a JSON object"));
	else if (answer_embeds(a))
		vectors_take(a, root);
	else
		chunk_take(a, root);
	if (!answer_embeds(a))
		answer_finish(a);
}

/* ---- life ---- */

struct ollama_answer *ollama_answer_new(enum ollama_api api, bool stream, struct cgn_str model)
{
	char *copy = cgn_str_dupz(model);
	if (copy == NULL)
		return NULL;
	struct ollama_answer *a = CGN_NEW(struct ollama_answer);
	a->tag = OLLAMA_ANSWER_TAG;
	a->api = api;
	a->stream = stream;
	a->status = 502;
	a->model = (struct cgn_str){copy, model.n};
	a->body.limit = OLLAMA_BODY_MAX;
	a->content.limit = a->thinking.limit = a->logprobs.limit = OLLAMA_TEXT_MAX;
	sse_scan_init(&a->scan, OLLAMA_EVENT_MAX, on_event, a);
	a->scan.on_line = on_line;
	return a;
}

void ollama_answer_free(struct ollama_answer **take)
{
	struct ollama_answer *a = CGN_TAKE_LIVE(take, OLLAMA_ANSWER_TAG);
	if (a == NULL)
		return;
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

void ollama_answer_expect(struct ollama_answer *a, size_t vectors)
{
	CGN_LIVE(a, OLLAMA_ANSWER_TAG);
	a->vectors = vectors;
}

bool ollama_answer_begin(struct ollama_answer *a, int status, bool events, struct cgn_str encoding)
{
	CGN_LIVE(a, OLLAMA_ANSWER_TAG);
	a->status = status;
	a->encoded = encoding.n > 0 && !cgn_str_eq_nocase(encoding, CGN_STR("identity"));
	a->events = events && status == 200 && !answer_embeds(a) && !a->encoded;
	a->lines = a->stream && a->events;
	return a->lines;
}

static void lost_check(struct ollama_answer *a)
{
	if (a->scan.lost_events > 0 && !a->failed && !a->done)
		ollama_error_put(a, CGN_STR("the engine sent an event longer than 1 MiB"));
}

void ollama_answer_feed(struct ollama_answer *a, struct cgn_str data, const struct ollama_time *now,
	struct cgn_buf *out)
{
	CGN_LIVE(a, OLLAMA_ANSWER_TAG);
	if (a->done || a->failed || a->encoded)
		return;
	a->out = out;
	a->now = now;
	if (!a->events) {
		cgn_buf_str(&a->body, data);
		return;
	}
	sse_scan_feed(&a->scan, data);
	lost_check(a);
}

void ollama_answer_end(struct ollama_answer *a, const struct ollama_time *now, struct cgn_buf *out)
{
	CGN_LIVE(a, OLLAMA_ANSWER_TAG);
	a->out = out;
	a->now = now;
	if (a->done || a->failed)
		return;
	if (!a->events) {
		body_take(a);
		return;
	}
	sse_scan_end(&a->scan);
	lost_check(a);
	answer_finish(a);
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
