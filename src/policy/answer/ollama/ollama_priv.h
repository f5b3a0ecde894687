/* SPDX-License-Identifier: Apache-2.0 */
/* ollama, inside. */
#pragma once
#include "base/sse/sse.h"
#include "policy/answer/ollama/ollama.h"

static inline bool ollama_is_there(struct json_val v)
{
	return v.raw.p != NULL && v.type != JSON_NULL;
}

struct ollama_call {
	struct cgn_buf id, name;  /* JSON strings; empty: not told. */
	struct cgn_buf arguments; /* The JSON text that the pieces make. */
	uint64_t index;           /* As the engine counts; several calls may have one. */
	/* The arguments so far: open brackets, and whether the first one is closed. */
	uint32_t depth;
	bool in_string, escaped, whole;
};

#define OLLAMA_ANSWER_TAG 0x011a3a01U
struct ollama_answer {
	uint32_t tag;
	enum ollama_api api;
	bool stream, lines, events;
	bool encoded;   /* The engine's bytes are compressed. */
	size_t vectors; /* Asked for; 0: not told. */
	int status;
	struct cgn_str model; /* Owned. */
	/* ---- the engine's bytes ---- */
	struct sse_scan scan;
	struct cgn_buf body; /* An answer that is not a stream. */
	/* Output and time of the current call. */
	struct cgn_buf *out;
	const struct ollama_time *now;
	/* ---- gathered texts: beginnings of JSON, without the closing quote or bracket ---- */
	struct cgn_buf content, thinking, logprobs;
	struct ollama_call *calls;
	size_t n_calls;
	/* ---- numbers of the last line ---- */
	bool failed, done;
	/* A choice came; a finish_reason or [DONE] came; the reason is that of a failure. */
	bool answered, ended, broken;
	char reason[32]; /* For done_reason; empty: none was told. */
	uint64_t prompt_tokens, answer_tokens;
	double prompt_ms, answer_ms; /* The engine's own; 0: not told. */
	cgn_nsec first, last;        /* Instants of the first and last token; 0: none. */
};

/* ---- said.c ---- */

#define OLLAMA_NO_ARGUMENTS "the engine's tool call has arguments that are not a JSON object"
/* The texts of a choice. They are JSON strings, of the document or of the buffers here; empty: none. */
struct ollama_said {
	struct cgn_str content, thinking;
	bool calls; /* With pieces of tool calls, which the answer has gathered. */
	struct cgn_buf texts, thoughts;
};
void ollama_said_fini(struct ollama_said *s);
/* Read a choice. False: it is not understood, and the answer has failed. */
bool ollama_said_read(struct ollama_answer *a, struct json_val choice, struct ollama_said *out);
/* Append the inside of the JSON string |json| to |text|, the beginning of a JSON string. */
void ollama_text_add(struct cgn_buf *text, struct cgn_str json);
/* All pieces of the tool calls are there. False: one is not a call, and the answer has failed. */
bool ollama_calls_check(struct ollama_answer *a);

/* ---- write.c ---- */

/* Put a member with the Unix time |ms| in the form of RFC 3339. */
void ollama_put_time(struct json_out *j, const char *key, uint64_t ms);
/* An object of the answer. Texts are JSON; an empty one is absent. */
struct ollama_line {
	struct cgn_str content, thinking, logprobs;
	bool calls; /* With the tool calls. */
	bool last;
};
/* Append the object, and a line end if the answer consists of lines. */
void ollama_line_put(struct ollama_answer *a, const struct ollama_line *line);
/* Append {"error"} in the same way, and be failed. */
void ollama_error_put(struct ollama_answer *a, struct cgn_str why);
