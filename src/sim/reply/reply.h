/* SPDX-License-Identifier: Apache-2.0 */
/* reply: how an answer looks on the wire, per API. Pure: writes events and bodies, knows no socket. A reply
 * holds no text: each choice makes its words again as they are sent.
 *
 * Shapes: vLLM's entrypoints/openai (protocol.py, serving_chat.py, serving_completion.py,
 * serving_responses.py) and entrypoints/anthropic, of v0.10 and v0.11, as their documentation and clients
 * show them; not compared with a running vLLM. On purpose different: error codes are OpenAI's strings where
 * OpenAI has one ("model_not_found", "context_length_exceeded"; vLLM repeats the status), cached_tokens is
 * always there (vLLM: with --enable-prompt-tokens-details), a forced tool call finishes with "tool_calls",
 * and an Anthropic stream ends with message_stop (vLLM adds "[DONE]"). */
#pragma once
#include "sim/request/request.h"

struct sim_choice {
	struct sim_text start; /* the whole text */
	struct sim_text text;  /* what is still to be sent */
	struct sim_plan plan;
	uint64_t seed;
	/* tokens: the model gave, the client was sent; sent <= given <= plan.n_tokens */
	uint32_t given, sent;
	uint64_t sent_bytes;
	bool closed; /* its last event is out */
};

struct sim_reply {
	enum sim_api api;
	bool stream, include_usage, opened;
	int logprobs;
	/* of the whole, of the message or item in it, of the tool call */
	char id[112], msg_id[40], call_id[40];
	uint64_t created;     /* Unix seconds */
	struct cgn_str model; /* borrowed; quoted JSON */
	struct cgn_str tool;  /* name; n == 0: no tool call */
	struct cgn_str stop;  /* the stop string that ended the first choice; n == 0: none */
	uint64_t prompt_tokens, cached_tokens;
	uint32_t sequence; /* of events, Responses API */
	uint32_t n_choices;
	struct sim_choice *choices;
};

/* Takes each finished event, whole: "data: ...\n\n". */
struct sim_sink {
	struct cgn_buf b; /* scratch, reused */
	void (*emit)(void *arg, struct cgn_str event);
	void *arg;
};

struct sim_reply_ops {
	const char *path;
	const char *id_prefix;
	void (*open)(struct sim_reply *r, struct sim_sink *to); /* before the first token */
	void (*token)(struct sim_reply *r, uint32_t i, struct cgn_str piece, struct sim_sink *to);
	void (*finish)(struct sim_reply *r, uint32_t i, struct sim_sink *to); /* choice |i| is over */
	void (*close)(struct sim_reply *r, struct sim_sink *to);              /* all are */
	void (*whole)(const struct sim_reply *r, struct cgn_buf *b);          /* not streamed: the body */
};
extern const struct sim_reply_ops sim_reply_chat, sim_reply_completions, sim_reply_responses,
	sim_reply_messages;
const struct sim_reply_ops *sim_reply_ops_of(enum sim_api api);

/* Send what is given and not sent, up to |most| tokens (fewer if |full| says stop), opening and closing as
 * due. True when all is out. */
bool sim_reply_pump(struct sim_reply *r, uint64_t most, struct sim_sink *to, bool (*full)(void *arg));
/* SSE error event in OpenAI's shape, and the body of an error answer. */
void sim_error_body(struct cgn_buf *b, const struct sim_refusal *no);

/* For the dialects. */
void sim_put_text(const struct sim_choice *c, struct cgn_buf *b); /* all of it, as a JSON string */
void sim_put_string(struct cgn_buf *b, struct cgn_str s);         /* as a JSON string */
void sim_put_usage(const struct sim_reply *r, struct cgn_buf *b); /* "usage":{...} in OpenAI's terms */
/* "token":..,"logprob":..,"bytes":[..] */
void sim_put_token_logprob(struct cgn_buf *b, struct cgn_str token, double logprob);
uint64_t sim_tokens_sent(const struct sim_reply *r);
void sim_event_end(struct sim_sink *to);
