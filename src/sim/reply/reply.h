/* SPDX-License-Identifier: Apache-2.0 */
/* reply: the wire format of answers for each API. Pure: writes events and bodies, knows no socket. A reply
 * does not hold its text; each choice generates its words again while they are sent.
 *
 * Formats: vLLM's entrypoints/openai (protocol.py, serving_chat.py, serving_completion.py,
 * serving_responses.py) and entrypoints/anthropic, v0.10 and v0.11, by documentation and clients; not
 * compared with a running vLLM. Deliberate differences: error codes are OpenAI's strings where OpenAI has one
 * ("model_not_found", "context_length_exceeded"; vLLM repeats the status), cached_tokens is always present
 * (vLLM: with --enable-prompt-tokens-details), a forced tool call finishes with "tool_calls", and an
 * Anthropic stream ends with message_stop (vLLM adds "[DONE]"). */
#pragma once
#include "sim/request/request.h"

struct sim_choice {
	struct sim_text start; /* The whole text. */
	struct sim_text text;  /* The part still to be sent. */
	struct sim_plan plan;
	uint64_t seed;
	double sure; /* See text/skill.h; below 0: not known. */
	/* Tokens given by the model and sent to the client; sent <= given <= plan.n_tokens. */
	uint32_t given, sent;
	uint64_t sent_bytes;
	bool closed; /* The last event is sent. */
};

struct sim_reply {
	enum sim_api api;
	bool stream, include_usage, opened;
	int logprobs;
	/* Ids of the answer, of the message or item in it, and of the tool call. */
	char id[112], msg_id[40], call_id[40];
	uint64_t created;     /* Unix seconds. */
	struct cgn_str model; /* Borrowed; quoted JSON. */
	struct cgn_str tool;  /* Name; n == 0: no tool call. */
	struct cgn_str stop;  /* Stop string that ended the first choice; n == 0: none. */
	uint64_t prompt_tokens, cached_tokens;
	struct cgn_str handed; /* Borrowed; JSON of the parameters for the decode leg; n == 0: none. */
	bool handed_in_choice; /* |handed| is disaggregated_params of each choice, not kv_transfer_params. */
	uint32_t sequence;     /* Event number of the Responses API. */
	uint32_t n_choices;
	struct sim_choice *choices;
};

/* Receives each complete event: "data: ...\n\n". */
struct sim_sink {
	struct cgn_buf b; /* Scratch, reused. */
	void (*emit)(void *arg, struct cgn_str event);
	void *arg;
};

struct sim_reply_ops {
	const char *path;
	const char *id_prefix;
	void (*open)(struct sim_reply *r, struct sim_sink *to); /* Called before the first token. */
	void (*token)(struct sim_reply *r, uint32_t i, struct cgn_str piece, struct sim_sink *to);
	/* Called at the end of choice |i|. */
	void (*finish)(struct sim_reply *r, uint32_t i, struct sim_sink *to);
	/* Called after the last choice. */
	void (*close)(struct sim_reply *r, struct sim_sink *to);
	/* Writes the body of an answer that is not streamed. */
	void (*whole)(const struct sim_reply *r, struct cgn_buf *b);
};
extern const struct sim_reply_ops sim_reply_chat, sim_reply_completions, sim_reply_responses,
	sim_reply_messages;
const struct sim_reply_ops *sim_reply_ops_of(enum sim_api api);

/* Send given tokens, at most |most| (fewer when |full| returns true), opening and closing choices as due.
 * True when the whole answer is sent. */
bool sim_reply_pump(struct sim_reply *r, uint64_t most, struct sim_sink *to, bool (*full)(void *arg));
/* Append the body of an error answer, also used as an SSE error event in OpenAI's format. */
void sim_error_body(struct cgn_buf *b, const struct sim_refusal *no);

/* Helpers for the APIs' formats. */
/* Return the log-probability of the |k|-th alternative to the token at |at|. */
double sim_choice_logprob(const struct sim_choice *c, uint64_t at, unsigned k);
void sim_put_text(const struct sim_choice *c, struct cgn_buf *b); /* The whole text as a JSON string. */
void sim_put_string(struct cgn_buf *b, struct cgn_str s);         /* A JSON string. */
void sim_put_usage(const struct sim_reply *r, struct cgn_buf *b); /* "usage":{...} in OpenAI's format. */
/* Append the beginning of a body of kind |object|, up to the bracket that opens "choices". */
void sim_put_head(const struct sim_reply *r, const char *object, struct cgn_buf *b);
/* Append ,"finish_reason":..,"stop_reason":.. and the bracket that closes the choice |c|. */
void sim_put_finish(const struct sim_reply *r, const struct sim_choice *c, struct cgn_buf *b);
/* Append the stop string that ended the choice |c|, or null. */
void sim_put_stop(const struct sim_reply *r, const struct sim_choice *c, struct cgn_buf *b);
/* Send the usage, if the client wants it in a stream, as a chunk of kind |object|, then [DONE]. */
void sim_stream_close(const struct sim_reply *r, const char *object, struct sim_sink *to);
/* "token":..,"logprob":..,"bytes":[..] */
void sim_put_token_logprob(struct cgn_buf *b, struct cgn_str token, double logprob);
/* Append ,"kv_transfer_params":.. and the brace that closes the body. */
void sim_put_handed(const struct sim_reply *r, struct cgn_buf *b);
uint64_t sim_tokens_sent(const struct sim_reply *r);
void sim_event_end(struct sim_sink *to);
