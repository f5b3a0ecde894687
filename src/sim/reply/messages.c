/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/messages, Anthropic's API. */
#include "sim/reply/reply.h"

static const char *stop_reason(const struct sim_reply *r)
{
	const struct sim_plan *plan = &r->choices[0].plan;
	if (plan->finish == SIM_FINISH_LENGTH)
		return "max_tokens";
	if (r->tool.n > 0)
		return "tool_use";
	return plan->stop_index >= 0 ? "stop_sequence" : "end_turn";
}

static void put_stop(const struct sim_reply *r, struct cgn_buf *b)
{
	cgn_buf_fmt(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(r));
	sim_put_stop(r, &r->choices[0], b);
}

/* Append Anthropic's usage, whose input_tokens exclude cached tokens. */
static void put_usage(const struct sim_reply *r, uint64_t answer, struct cgn_buf *b)
{
	cgn_buf_fmt(b,
		"\"usage\":{\"input_tokens\":%llu,\"output_tokens\":%llu,\"cache_creation_input_tokens\":0,"
		"\"cache_read_input_tokens\":%llu}",
		(unsigned long long)(r->prompt_tokens - r->cached_tokens), (unsigned long long)answer,
		(unsigned long long)r->cached_tokens);
}

static void put_head(const struct sim_reply *r, struct cgn_buf *b)
{
	cgn_buf_fmt(b, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", r->id);
	cgn_buf_str(b, r->model);
}

static void put_block(const struct sim_reply *r, bool filled, struct cgn_buf *b)
{
	const struct sim_choice *c = &r->choices[0];
	if (r->tool.n == 0) {
		cgn_buf_putz(b, "{\"type\":\"text\",\"text\":");
		if (filled)
			sim_put_text(c, b);
		else
			cgn_buf_putz(b, "\"\"");
		cgn_buf_char(b, '}');
		return;
	}
	cgn_buf_fmt(b, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", r->call_id);
	sim_put_string(b, r->tool);
	cgn_buf_putz(b, ",\"input\":");
	/* A script cut by max_tokens is not valid JSON. */
	if (filled && c->plan.text_bytes == c->start.script.n)
		cgn_buf_str(b, c->start.script);
	else
		cgn_buf_putz(b, "{}");
	cgn_buf_char(b, '}');
}

static void event_begin(const char *type, struct sim_sink *to)
{
	cgn_buf_fmt(&to->b, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void event_close(struct sim_sink *to)
{
	cgn_buf_char(&to->b, '}');
	sim_event_end(to);
}

static void messages_open(struct sim_reply *r, struct sim_sink *to)
{
	event_begin("message_start", to);
	cgn_buf_putz(&to->b, ",\"message\":");
	put_head(r, &to->b);
	cgn_buf_putz(&to->b, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
	put_usage(r, 0, &to->b);
	cgn_buf_char(&to->b, '}');
	event_close(to);
	event_begin("content_block_start", to);
	cgn_buf_putz(&to->b, ",\"index\":0,\"content_block\":");
	put_block(r, false, &to->b);
	event_close(to);
}

static void messages_token(struct sim_reply *r, uint32_t i, struct cgn_str piece, struct sim_sink *to)
{
	(void)i;
	if (piece.n == 0)
		return;
	event_begin("content_block_delta", to);
	cgn_buf_putz(&to->b,
		r->tool.n > 0 ? ",\"index\":0,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":"
			      : ",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":");
	sim_put_string(&to->b, piece);
	cgn_buf_char(&to->b, '}');
	event_close(to);
}

static void messages_finish(struct sim_reply *r, uint32_t i, struct sim_sink *to)
{
	(void)r;
	(void)i;
	event_begin("content_block_stop", to);
	cgn_buf_putz(&to->b, ",\"index\":0");
	event_close(to);
}

static void messages_close(struct sim_reply *r, struct sim_sink *to)
{
	event_begin("message_delta", to);
	cgn_buf_putz(&to->b, ",\"delta\":{");
	put_stop(r, &to->b);
	cgn_buf_putz(&to->b, "},");
	put_usage(r, sim_tokens_sent(r), &to->b);
	event_close(to);
	event_begin("message_stop", to);
	event_close(to);
}

static void messages_whole(const struct sim_reply *r, struct cgn_buf *b)
{
	put_head(r, b);
	cgn_buf_putz(b, ",\"content\":[");
	put_block(r, true, b);
	cgn_buf_putz(b, "],");
	put_stop(r, b);
	cgn_buf_char(b, ',');
	put_usage(r, sim_tokens_sent(r), b);
	sim_put_handed(r, b);
}

const struct sim_reply_ops sim_reply_messages = {
	.path = "/v1/messages",
	.id_prefix = "msg_",
	.open = messages_open,
	.token = messages_token,
	.finish = messages_finish,
	.close = messages_close,
	.whole = messages_whole,
};
