/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/reply/reply.h"

#include "base/apierror/apierror.h"
#include "sim/text/skill.h"

const struct sim_reply_ops *sim_reply_ops_of(enum sim_api api)
{
	static const struct sim_reply_ops *const ops[SIM_API_COUNT] = {
		[SIM_CHAT] = &sim_reply_chat,
		[SIM_COMPLETIONS] = &sim_reply_completions,
		[SIM_RESPONSES] = &sim_reply_responses,
		[SIM_MESSAGES] = &sim_reply_messages,
	};
	CGN_MUST(api < SIM_API_COUNT);
	return ops[api];
}

void sim_event_end(struct sim_sink *to)
{
	cgn_buf_add(&to->b, "\n\n", 2);
	if (!to->b.bad)
		to->emit(to->arg, cgn_buf_view(&to->b));
	to->b.n = 0;
}

/* Return the next token's text, cut at the planned end. */
static struct cgn_str next_piece(struct sim_choice *c)
{
	struct cgn_str piece = {0};
	uint32_t id = 0;
	if (!sim_text_next(&c->text, &piece, &id))
		piece.n = 0;
	uint64_t left = c->plan.text_bytes - c->sent_bytes;
	if (piece.n > left)
		piece.n = (size_t)left;
	c->sent_bytes += piece.n;
	c->sent++;
	return piece;
}

static bool choice_pump(struct sim_reply *r, uint32_t i, uint64_t *most, struct sim_sink *to,
	bool (*full)(void *arg))
{
	const struct sim_reply_ops *ops = sim_reply_ops_of(r->api);
	struct sim_choice *c = &r->choices[i];
	for (; c->sent < c->given; --*most) {
		if (*most == 0 || full(to->arg))
			return false;
		ops->token(r, i, next_piece(c), to);
	}
	if (c->sent < c->plan.n_tokens)
		return false;
	if (!c->closed)
		ops->finish(r, i, to);
	c->closed = true;
	return true;
}

bool sim_reply_pump(struct sim_reply *r, uint64_t most, struct sim_sink *to, bool (*full)(void *arg))
{
	const struct sim_reply_ops *ops = sim_reply_ops_of(r->api);
	if (!r->opened)
		ops->open(r, to);
	r->opened = true;
	bool all = true;
	for (uint32_t i = 0; i < r->n_choices; i++) {
		if (!r->choices[i].closed)
			all &= choice_pump(r, i, &most, to, full);
	}
	if (all)
		ops->close(r, to);
	return all;
}

void sim_put_string(struct cgn_buf *b, struct cgn_str s)
{
	struct json_out o = json_out_to(b);
	json_put_str(&o, s);
}

void sim_put_text(const struct sim_choice *c, struct cgn_buf *b)
{
	if (c->start.scripted) {
		size_t n = c->start.script.n < c->plan.text_bytes ? c->start.script.n
								  : (size_t)c->plan.text_bytes;
		sim_put_string(b, (struct cgn_str){c->start.script.p, n});
		return;
	}
	struct sim_choice walk = {.text = c->start, .plan = c->plan}; /* Words need no escapes. */
	cgn_buf_char(b, '"');
	while (walk.sent < walk.plan.n_tokens)
		cgn_buf_str(b, next_piece(&walk));
	cgn_buf_char(b, '"');
}

uint64_t sim_tokens_sent(const struct sim_reply *r)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < r->n_choices; i++)
		n += r->stream ? r->choices[i].sent : r->choices[i].plan.n_tokens;
	return n;
}

void sim_put_usage(const struct sim_reply *r, struct cgn_buf *b)
{
	uint64_t answer = sim_tokens_sent(r);
	cgn_buf_putz(b, "\"usage\":{\"prompt_tokens\":");
	cgn_buf_u64(b, r->prompt_tokens);
	cgn_buf_putz(b, ",\"total_tokens\":");
	cgn_buf_u64(b, r->prompt_tokens + answer);
	cgn_buf_putz(b, ",\"completion_tokens\":");
	cgn_buf_u64(b, answer);
	cgn_buf_putz(b, ",\"prompt_tokens_details\":{\"cached_tokens\":");
	cgn_buf_u64(b, r->cached_tokens);
	cgn_buf_putz(b, "}}");
}

void sim_put_head(const struct sim_reply *r, const char *object, struct cgn_buf *b)
{
	cgn_buf_putz(b, "{\"id\":\"");
	cgn_buf_putz(b, r->id);
	cgn_buf_putz(b, "\",\"object\":\"");
	cgn_buf_putz(b, object);
	cgn_buf_putz(b, "\",\"created\":");
	cgn_buf_u64(b, r->created);
	cgn_buf_putz(b, ",\"model\":");
	cgn_buf_str(b, r->model);
	cgn_buf_putz(b, ",\"choices\":[");
}

void sim_put_stop(const struct sim_reply *r, const struct sim_choice *c, struct cgn_buf *b)
{
	if (c->plan.stop_index >= 0 && r->stop.n > 0)
		sim_put_string(b, r->stop);
	else
		cgn_buf_putz(b, "null");
}

void sim_put_finish(const struct sim_reply *r, const struct sim_choice *c, struct cgn_buf *b)
{
	cgn_buf_fmt(b, ",\"finish_reason\":\"%s\",\"stop_reason\":", sim_finish_name(c->plan.finish));
	sim_put_stop(r, c, b);
	if (r->handed.n > 0 && r->handed_in_choice) {
		cgn_buf_putz(b, ",\"disaggregated_params\":");
		cgn_buf_str(b, r->handed);
	}
	cgn_buf_char(b, '}');
}

void sim_put_handed(const struct sim_reply *r, struct cgn_buf *b)
{
	cgn_buf_putz(b, ",\"kv_transfer_params\":");
	cgn_buf_str(b, r->handed.n > 0 && !r->handed_in_choice ? r->handed : CGN_STR("null"));
	cgn_buf_char(b, '}');
}

void sim_stream_close(const struct sim_reply *r, const char *object, struct sim_sink *to)
{
	if (r->include_usage) {
		cgn_buf_putz(&to->b, "data: ");
		sim_put_head(r, object, &to->b);
		cgn_buf_putz(&to->b, "],");
		sim_put_usage(r, &to->b);
		cgn_buf_char(&to->b, '}');
		sim_event_end(to);
	}
	cgn_buf_putz(&to->b, "data: [DONE]");
	sim_event_end(to);
}

double sim_choice_logprob(const struct sim_choice *c, uint64_t at, unsigned k)
{
	return c->sure < 0 ? sim_text_logprob(c->seed, at, k) : sim_skill_logprob(c->sure, c->seed, at, k);
}

void sim_put_token_logprob(struct cgn_buf *b, struct cgn_str token, double logprob)
{
	cgn_buf_putz(b, "\"token\":");
	sim_put_string(b, token);
	cgn_buf_fmt(b, ",\"logprob\":%.10g,\"bytes\":[", logprob);
	for (size_t i = 0; i < token.n; i++)
		cgn_buf_fmt(b, "%s%u", i > 0 ? "," : "", (unsigned)(uint8_t)token.p[i]);
	cgn_buf_char(b, ']');
}

void sim_error_body(struct cgn_buf *b, const struct sim_refusal *no)
{
	apierror_put(b,
		&(struct apierror){.message = no->msg,
			.type = no->type,
			.param = no->param,
			.code = no->code,
			.status = no->status});
}
