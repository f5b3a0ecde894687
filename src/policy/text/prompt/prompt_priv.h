/* SPDX-License-Identifier: Apache-2.0 */
/* prompt, inside: the writer of messages that the shapes of the APIs share. */
#pragma once
#include "policy/text/prompt/prompt.h"

struct prompt_writer {
	struct prompt *p;
	struct json_out j; /* Writes into p->store. */
	enum prompt_format format;
	const char *lacks; /* NULL: no failure. */
};

/* A message. Absent (raw.p NULL) and null fields are left out, except content. */
struct prompt_message {
	struct json_val role, content, name, tool_call_id, tool_calls, reasoning;
};

static inline bool prompt_is_there(struct json_val v)
{
	return v.raw.p != NULL && v.type != JSON_NULL;
}
static inline struct json_val prompt_literal(struct cgn_str json_string)
{
	return (struct json_val){JSON_STRING, json_string};
}
/* Write |items|, JSON values separated by commas, as an array into |out|, which must be empty. */
struct json_val prompt_list_of(const struct cgn_buf *items, struct cgn_buf *out);
void prompt_put_message(struct prompt_writer *w, const struct prompt_message *m);
/* Write tools of the three shapes: {"type","function":{...}}, the same without nesting, and Anthropic's
 * {"name","description","input_schema"}. */
void prompt_put_tools(struct prompt_writer *w, struct json_val tools);

/* responses.c, anthropic.c: write all messages of the body into an open array. */
void prompt_put_responses(struct prompt_writer *w, struct json_val body);
void prompt_put_anthropic(struct prompt_writer *w, struct json_val body);
