/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/chat/completions. */
#include "sim/reply/reply.h"

#define CHUNK "chat.completion.chunk" /* The object of each event of a stream. */

static void choice_begin(const struct sim_reply *r, uint32_t i, struct cgn_buf *b)
{
	cgn_buf_putz(b, "data: ");
	sim_put_head(r, CHUNK, b);
	cgn_buf_putz(b, "{\"index\":");
	cgn_buf_u64(b, i);
	cgn_buf_putz(b, ",\"delta\":{");
}

/* Append one element of logprobs.content. */
static void put_logprob(const struct sim_reply *r, const struct sim_choice *c, uint64_t at,
	struct cgn_str token, struct cgn_buf *b)
{
	cgn_buf_char(b, '{');
	sim_put_token_logprob(b, token, sim_choice_logprob(c, at, 0));
	cgn_buf_putz(b, ",\"top_logprobs\":[");
	for (int k = 0; k < r->logprobs; k++) {
		cgn_buf_putz(b, k > 0 ? ",{" : "{");
		struct cgn_str rival = k == 0 ? token : sim_text_alternative(c->seed, at, (unsigned)k);
		sim_put_token_logprob(b, rival, sim_choice_logprob(c, at, (unsigned)k));
		cgn_buf_char(b, '}');
	}
	cgn_buf_putz(b, "]}");
}

static void choice_end(struct sim_sink *to)
{
	cgn_buf_putz(&to->b, ",\"finish_reason\":null}]}");
	sim_event_end(to);
}

static void chat_open(struct sim_reply *r, struct sim_sink *to)
{
	for (uint32_t i = 0; i < r->n_choices; i++) {
		choice_begin(r, i, &to->b);
		cgn_buf_putz(&to->b, "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null");
		choice_end(to);
	}
	if (r->tool.n == 0)
		return;
	choice_begin(r, 0, &to->b);
	cgn_buf_fmt(&to->b,
		"\"tool_calls\":[{\"id\":\"%s\",\"type\":\"function\",\"index\":0,\"function\":{\"name\":",
		r->call_id);
	sim_put_string(&to->b, r->tool);
	cgn_buf_putz(&to->b, ",\"arguments\":\"\"}}]},\"logprobs\":null");
	choice_end(to);
}

static void chat_token(struct sim_reply *r, uint32_t i, struct cgn_str piece, struct sim_sink *to)
{
	const struct sim_choice *c = &r->choices[i];
	if (piece.n == 0 && r->logprobs < 0)
		return; /* Part of a character, or behind a stop string: nothing to show, as in vLLM. */
	choice_begin(r, i, &to->b);
	if (r->tool.n > 0) {
		cgn_buf_putz(&to->b, "\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":");
		sim_put_string(&to->b, piece);
		cgn_buf_putz(&to->b, "}}]},\"logprobs\":null");
		choice_end(to);
		return;
	}
	cgn_buf_putz(&to->b, "\"content\":");
	sim_put_string(&to->b, piece);
	cgn_buf_putz(&to->b, "},\"logprobs\":");
	if (r->logprobs < 0) {
		cgn_buf_putz(&to->b, "null");
	} else {
		cgn_buf_putz(&to->b, "{\"content\":[");
		put_logprob(r, c, c->sent - 1U, piece, &to->b);
		cgn_buf_putz(&to->b, "]}");
	}
	choice_end(to);
}

static void chat_finish(struct sim_reply *r, uint32_t i, struct sim_sink *to)
{
	choice_begin(r, i, &to->b);
	cgn_buf_putz(&to->b, r->tool.n > 0 ? "},\"logprobs\":null" : "\"content\":\"\"},\"logprobs\":null");
	sim_put_finish(r, &r->choices[i], &to->b);
	cgn_buf_putz(&to->b, "]}");
	sim_event_end(to);
}

static void chat_close(struct sim_reply *r, struct sim_sink *to)
{
	sim_stream_close(r, CHUNK, to);
}

static void put_logprobs(const struct sim_reply *r, const struct sim_choice *c, struct cgn_buf *b)
{
	if (r->logprobs < 0 || r->tool.n > 0) {
		cgn_buf_putz(b, "null");
		return;
	}
	struct sim_text text = c->start;
	struct cgn_str piece;
	uint32_t id = 0;
	cgn_buf_putz(b, "{\"content\":[");
	for (uint32_t at = 0; at < c->plan.n_tokens && sim_text_next(&text, &piece, &id); at++) {
		if (at > 0)
			cgn_buf_char(b, ',');
		put_logprob(r, c, at, piece, b);
	}
	cgn_buf_putz(b, "]}");
}

static void put_message(const struct sim_reply *r, const struct sim_choice *c, struct cgn_buf *b)
{
	cgn_buf_putz(b, "\"message\":{\"role\":\"assistant\",\"content\":");
	if (r->tool.n == 0)
		sim_put_text(c, b);
	else
		cgn_buf_putz(b, "null");
	cgn_buf_putz(b,
		",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"tool_calls\":[");
	if (r->tool.n > 0) {
		cgn_buf_fmt(b, "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", r->call_id);
		sim_put_string(b, r->tool);
		cgn_buf_putz(b, ",\"arguments\":");
		sim_put_text(c, b);
		cgn_buf_putz(b, "}}");
	}
	cgn_buf_putz(b, "],\"reasoning_content\":null}");
}

static void chat_whole(const struct sim_reply *r, struct cgn_buf *b)
{
	sim_put_head(r, "chat.completion", b);
	for (uint32_t i = 0; i < r->n_choices; i++) {
		cgn_buf_putz(b, i > 0 ? ",{\"index\":" : "{\"index\":");
		cgn_buf_u64(b, i);
		cgn_buf_char(b, ',');
		put_message(r, &r->choices[i], b);
		cgn_buf_putz(b, ",\"logprobs\":");
		put_logprobs(r, &r->choices[i], b);
		sim_put_finish(r, &r->choices[i], b);
	}
	cgn_buf_putz(b, "],\"service_tier\":null,\"system_fingerprint\":null,");
	sim_put_usage(r, b);
	cgn_buf_putz(b, ",\"prompt_logprobs\":null");
	sim_put_handed(r, b);
}

const struct sim_reply_ops sim_reply_chat = {
	.path = "/v1/chat/completions",
	.id_prefix = "chatcmpl-",
	.open = chat_open,
	.token = chat_token,
	.finish = chat_finish,
	.close = chat_close,
	.whole = chat_whole,
};
