/* SPDX-License-Identifier: Apache-2.0 */
/* write: the objects of an answer. */

#include "base/core/utc.h"
#include "policy/answer/ollama/ollama_priv.h"

void ollama_put_time(struct json_out *j, const char *key, uint64_t ms)
{
	char day[32], text[48];
	if (!cgn_utc_text((int64_t)(ms / 1000), "%Y-%m-%dT%H:%M:%S", day, sizeof day))
		(void)cgn_str_copyz(day, sizeof day, CGN_STR("1970-01-01T00:00:00"));
	(void)snprintf(text, sizeof text, "%s.%03uZ", day, (unsigned)(ms % 1000));
	json_key_z(j, key, text);
}

static void raw_put(struct json_out *j, const char *key, struct cgn_str json)
{
	json_key(j, key);
	json_put_flat(j, json);
}

static void call_put(struct json_out *j, size_t index, const struct ollama_call *call)
{
	json_open(j, '{');
	if (call->id.n > 0)
		raw_put(j, "id", cgn_buf_view(&call->id));
	json_key_open(j, "function", '{');
	json_key_u64(j, "index", index);
	raw_put(j, "name", call->name.n > 0 ? cgn_buf_view(&call->name) : CGN_STR("\"\""));
	raw_put(j, "arguments", call->arguments.n > 0 ? cgn_buf_view(&call->arguments) : CGN_STR("{}"));
	json_close(j, '}');
	json_close(j, '}');
}

static void message_put(const struct ollama_answer *a, struct json_out *j, const struct ollama_line *line,
	struct cgn_str content)
{
	json_key_open(j, "message", '{');
	json_key_z(j, "role", "assistant");
	raw_put(j, "content", content);
	if (line->thinking.n > 0)
		raw_put(j, "thinking", line->thinking);
	if (line->calls && a->n_calls > 0) {
		json_key_open(j, "tool_calls", '[');
		for (size_t i = 0; i < a->n_calls; i++)
			call_put(j, i, &a->calls[i]);
		json_close(j, ']');
	}
	json_close(j, '}');
}

static uint64_t nsec_of_ms(double ms)
{
	return ms > 0 && ms < 1e12 ? (uint64_t)(ms * 1e6) : 0;
}

/* Durations are in nanoseconds: the engine's own, else those that the stream showed. */
static void counts_put(const struct ollama_answer *a, struct json_out *j)
{
	uint64_t prompt = nsec_of_ms(a->prompt_ms), answer = nsec_of_ms(a->answer_ms);
	json_key_u64(j, "total_duration", a->now->elapsed);
	json_key_u64(j, "load_duration", 0);
	json_key_u64(j, "prompt_eval_count", a->prompt_tokens);
	json_key_u64(j, "prompt_eval_duration", prompt > 0 ? prompt : a->first);
	json_key_u64(j, "eval_count", a->answer_tokens);
	json_key_u64(j, "eval_duration", answer > 0 ? answer : a->last - a->first);
}

void ollama_line_put(struct ollama_answer *a, const struct ollama_line *line)
{
	struct json_out j = json_out_to(a->out);
	struct cgn_str content = line->content.n > 0 ? line->content : CGN_STR("\"\"");
	json_open(&j, '{');
	json_key_str(&j, "model", a->model);
	ollama_put_time(&j, "created_at", a->now->wall_ms);
	if (a->api == OLLAMA_CHAT)
		message_put(a, &j, line, content);
	else
		raw_put(&j, "response", content);
	if (a->api != OLLAMA_CHAT && line->thinking.n > 0)
		raw_put(&j, "thinking", line->thinking);
	if (line->logprobs.n > 0)
		raw_put(&j, "logprobs", line->logprobs);
	json_key_bool(&j, "done", line->last);
	if (line->last) {
		json_key_z(&j, "done_reason", a->reason[0] != '\0' ? a->reason : "stop");
		counts_put(a, &j);
	}
	json_close(&j, '}');
	if (a->stream)
		cgn_buf_char(a->out, '\n');
}

void ollama_error_put(struct ollama_answer *a, struct cgn_str why)
{
	struct json_out j = json_out_to(a->out);
	json_open(&j, '{');
	json_key_str(&j, "error", why);
	json_close(&j, '}');
	if (a->lines)
		cgn_buf_char(a->out, '\n');
	a->failed = true;
	if (a->status < 400)
		a->status = 502;
}
