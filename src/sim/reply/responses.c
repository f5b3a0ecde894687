/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/responses. */
#include "sim/reply/reply.h"

static void put_event(struct sim_reply *r, const char *type, struct cgn_buf *b)
{
	cgn_buf_fmt(b, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%u", type, type, r->sequence++);
}

static const char *status_of(const struct sim_reply *r)
{
	return r->choices[0].plan.finish == SIM_FINISH_LENGTH ? "incomplete" : "completed";
}

static void put_part(const struct sim_reply *r, bool filled, struct cgn_buf *b)
{
	cgn_buf_putz(b, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":");
	if (filled)
		sim_put_text(&r->choices[0], b);
	else
		cgn_buf_putz(b, "\"\"");
	cgn_buf_char(b, '}');
}

/* Append the only output item: a message or a function call. */
static void put_item(const struct sim_reply *r, const char *status, bool filled, struct cgn_buf *b)
{
	if (r->tool.n > 0) {
		cgn_buf_fmt(b,
			"{\"id\":\"%s\",\"type\":\"function_call\",\"status\":\"%s\",\"call_id\":\"%s\",\"name\":",
			r->msg_id, status, r->call_id);
		sim_put_string(b, r->tool);
		cgn_buf_putz(b, ",\"arguments\":");
		if (filled)
			sim_put_text(&r->choices[0], b);
		else
			cgn_buf_putz(b, "\"\"");
		cgn_buf_char(b, '}');
		return;
	}
	cgn_buf_fmt(b,
		"{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"status\":\"%s\",\"content\":[",
		r->msg_id, status);
	if (filled)
		put_part(r, true, b);
	cgn_buf_putz(b, "]}");
}

static void put_usage(const struct sim_reply *r, struct cgn_buf *b)
{
	uint64_t answer = sim_tokens_sent(r);
	cgn_buf_fmt(b,
		"{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu},\"output_tokens\":%llu,"
		"\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%llu}",
		(unsigned long long)r->prompt_tokens, (unsigned long long)r->cached_tokens,
		(unsigned long long)answer, (unsigned long long)(r->prompt_tokens + answer));
}

static void put_response(const struct sim_reply *r, bool done, struct cgn_buf *b)
{
	bool cut = done && r->choices[0].plan.finish == SIM_FINISH_LENGTH;
	cgn_buf_fmt(b,
		"{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%llu,\"status\":\"%s\",\"error\":null,\"incomplete_details\":%s,",
		r->id, (unsigned long long)r->created, done ? status_of(r) : "in_progress",
		cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
	cgn_buf_putz(b, "\"instructions\":null,\"metadata\":null,\"model\":");
	cgn_buf_str(b, r->model);
	cgn_buf_putz(b, ",\"output\":[");
	if (done)
		put_item(r, status_of(r), true, b);
	cgn_buf_putz(b,
		"],\"parallel_tool_calls\":true,\"previous_response_id\":null,\"temperature\":1.0,\"tool_choice\":\"auto\","
		"\"tools\":[],\"top_p\":1.0,\"usage\":");
	if (done)
		put_usage(r, b);
	else
		cgn_buf_putz(b, "null");
	cgn_buf_char(b, '}');
}

static void response_event(struct sim_reply *r, const char *type, bool done, struct sim_sink *to)
{
	put_event(r, type, &to->b);
	cgn_buf_putz(&to->b, ",\"response\":");
	put_response(r, done, &to->b);
	cgn_buf_char(&to->b, '}');
	sim_event_end(to);
}

static void item_event(struct sim_reply *r, const char *type, const char *status, bool filled,
	struct sim_sink *to)
{
	put_event(r, type, &to->b);
	cgn_buf_putz(&to->b, ",\"output_index\":0,\"item\":");
	put_item(r, status, filled, &to->b);
	cgn_buf_char(&to->b, '}');
	sim_event_end(to);
}

static void part_event(struct sim_reply *r, const char *type, bool filled, struct sim_sink *to)
{
	put_event(r, type, &to->b);
	cgn_buf_fmt(&to->b,
		",\"item_id\":\"%s\",\"output_index\":0,\"content_index\":0,\"part\":", r->msg_id);
	put_part(r, filled, &to->b);
	cgn_buf_char(&to->b, '}');
	sim_event_end(to);
}

static void responses_open(struct sim_reply *r, struct sim_sink *to)
{
	response_event(r, "response.created", false, to);
	response_event(r, "response.in_progress", false, to);
	item_event(r, "response.output_item.added", "in_progress", false, to);
	if (r->tool.n == 0)
		part_event(r, "response.content_part.added", false, to);
}

static void responses_token(struct sim_reply *r, uint32_t i, struct cgn_str piece, struct sim_sink *to)
{
	(void)i;
	if (piece.n == 0)
		return;
	bool tool = r->tool.n > 0;
	put_event(r, tool ? "response.function_call_arguments.delta" : "response.output_text.delta", &to->b);
	cgn_buf_fmt(&to->b, ",\"item_id\":\"%s\",\"output_index\":0%s,\"delta\":", r->msg_id,
		tool ? "" : ",\"content_index\":0,\"logprobs\":[]");
	sim_put_string(&to->b, piece);
	cgn_buf_char(&to->b, '}');
	sim_event_end(to);
}

/* Send the closing events, which repeat the whole text. */
static void responses_finish(struct sim_reply *r, uint32_t i, struct sim_sink *to)
{
	bool tool = r->tool.n > 0;
	put_event(r, tool ? "response.function_call_arguments.done" : "response.output_text.done", &to->b);
	cgn_buf_fmt(&to->b, ",\"item_id\":\"%s\",\"output_index\":0,", r->msg_id);
	if (tool) {
		cgn_buf_putz(&to->b, "\"name\":");
		sim_put_string(&to->b, r->tool);
		cgn_buf_putz(&to->b, ",\"arguments\":");
	} else {
		cgn_buf_putz(&to->b, "\"content_index\":0,\"logprobs\":[],\"text\":");
	}
	sim_put_text(&r->choices[i], &to->b);
	cgn_buf_char(&to->b, '}');
	sim_event_end(to);
	if (!tool)
		part_event(r, "response.content_part.done", true, to);
	item_event(r, "response.output_item.done", status_of(r), true, to);
}

static void responses_close(struct sim_reply *r, struct sim_sink *to)
{
	bool cut = r->choices[0].plan.finish == SIM_FINISH_LENGTH;
	response_event(r, cut ? "response.incomplete" : "response.completed", true, to);
}

static void responses_whole(const struct sim_reply *r, struct cgn_buf *b)
{
	put_response(r, true, b);
	if (b->n > 0 && b->p[b->n - 1] == '}')
		b->n--; /* A member follows. */
	sim_put_handed(r, b);
}

const struct sim_reply_ops sim_reply_responses = {
	.path = "/v1/responses",
	.id_prefix = "resp_",
	.open = responses_open,
	.token = responses_token,
	.finish = responses_finish,
	.close = responses_close,
	.whole = responses_whole,
};
