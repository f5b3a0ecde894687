/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/completions. */
#include "sim/reply/reply.h"

#define OBJECT "text_completion"

/* Append the four parallel lists for |n| tokens from position |at| on; |offset| is the text offset of the
 * first one. */
static void put_logprobs(const struct sim_reply *r, const struct sim_choice *c, struct sim_text text,
	uint32_t at, uint32_t n, uint64_t offset, struct cgn_buf *b)
{
	static const char *const lists[] = {"text_offset", "token_logprobs", "tokens", "top_logprobs"};
	if (r->logprobs < 0) {
		cgn_buf_putz(b, "null");
		return;
	}
	for (unsigned list = 0; list < CGN_COUNT(lists); list++) {
		struct sim_text walk = text;
		struct cgn_str piece;
		uint64_t from = offset;
		uint32_t id = 0;
		cgn_buf_fmt(b, "%s\"%s\":[", list > 0 ? "," : "{", lists[list]);
		for (uint32_t i = 0; i < n && sim_text_next(&walk, &piece, &id); from += piece.n, i++) {
			if (i > 0)
				cgn_buf_char(b, ',');
			if (list == 0)
				cgn_buf_u64(b, from);
			else if (list == 1)
				cgn_buf_fmt(b, "%.10g", sim_choice_logprob(c, at + i, 0));
			else if (list == 2)
				sim_put_string(b, piece);
			for (int k = 0; list == 3 && k <= r->logprobs; k++) {
				cgn_buf_putz(b, k > 0 ? "," : "{");
				sim_put_string(b,
					k == 0 ? piece : sim_text_alternative(c->seed, at + i, (unsigned)k));
				cgn_buf_fmt(b, ":%.10g", sim_choice_logprob(c, at + i, (unsigned)k));
			}
			cgn_buf_putz(b, list == 3 ? "}" : "");
		}
		cgn_buf_char(b, ']');
	}
	cgn_buf_char(b, '}');
}

static void choice_begin(const struct sim_reply *r, uint32_t i, struct cgn_str text, struct cgn_buf *b)
{
	cgn_buf_putz(b, "data: ");
	sim_put_head(r, OBJECT, b);
	cgn_buf_putz(b, "{\"index\":");
	cgn_buf_u64(b, i);
	cgn_buf_putz(b, ",\"text\":");
	sim_put_string(b, text);
	cgn_buf_putz(b, ",\"logprobs\":");
}

static void completions_open(struct sim_reply *r, struct sim_sink *to)
{
	(void)r;
	(void)to;
}

static void completions_token(struct sim_reply *r, uint32_t i, struct cgn_str piece, struct sim_sink *to)
{
	const struct sim_choice *c = &r->choices[i];
	struct sim_text one;
	sim_text_script(&one, piece);
	choice_begin(r, i, piece, &to->b);
	put_logprobs(r, c, one, c->sent - 1U, 1, c->sent_bytes - piece.n, &to->b);
	cgn_buf_putz(&to->b, ",\"finish_reason\":null,\"stop_reason\":null}]}");
	sim_event_end(to);
}

static void completions_finish(struct sim_reply *r, uint32_t i, struct sim_sink *to)
{
	choice_begin(r, i, CGN_STR(""), &to->b);
	cgn_buf_putz(&to->b, "null");
	sim_put_finish(r, &r->choices[i], &to->b);
	cgn_buf_putz(&to->b, "]}");
	sim_event_end(to);
}

static void completions_close(struct sim_reply *r, struct sim_sink *to)
{
	sim_stream_close(r, OBJECT, to);
}

static void completions_whole(const struct sim_reply *r, struct cgn_buf *b)
{
	sim_put_head(r, OBJECT, b);
	for (uint32_t i = 0; i < r->n_choices; i++) {
		const struct sim_choice *c = &r->choices[i];
		cgn_buf_putz(b, i > 0 ? ",{\"index\":" : "{\"index\":");
		cgn_buf_u64(b, i);
		cgn_buf_putz(b, ",\"text\":");
		sim_put_text(c, b);
		cgn_buf_putz(b, ",\"logprobs\":");
		put_logprobs(r, c, c->start, 0, c->plan.n_tokens, 0, b);
		sim_put_finish(r, c, b);
	}
	cgn_buf_putz(b, "],\"service_tier\":null,\"system_fingerprint\":null,");
	sim_put_usage(r, b);
	sim_put_handed(r, b);
}

const struct sim_reply_ops sim_reply_completions = {
	.path = "/v1/completions",
	.id_prefix = "cmpl-",
	.open = completions_open,
	.token = completions_token,
	.finish = completions_finish,
	.close = completions_close,
	.whole = completions_whole,
};
