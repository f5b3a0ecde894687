/* SPDX-License-Identifier: Apache-2.0 */
/* tokens: how an engine is asked which token ids it would read: the paths and bodies of each kind, and how
 * the answers are read. Pure.
 *   | kind | chat | text | read at |
 *   | vLLM, sim | /tokenize with messages | /tokenize with prompt | vLLM 0.26 |
 *   | openai_compat | as vLLM, which it may be | the same | |
 *   | llama.cpp | /apply-template, then /tokenize of its answer | /tokenize | 0.7.0 | */
#pragma once
#include "policy/engine/engine.h"
#include "policy/prompt/prompt.h"

#define ENGINE_TOKENS_STEPS 2

struct engine_tokens_step {
	const char *path; /* NULL: there is no such step */
	/* Append the request's body. |before| is what the step before has read; empty in the first. */
	void (*ask)(struct cgn_str model, const struct prompt *p, struct cgn_str before,
		struct cgn_buf *body);
	/* Append what the answer says to |out|: the last step 32-bit ids, at most |max_ids|, in the machine's
	 * order; another a text. CGN_BAD_GATEWAY: it is no such answer; CGN_NO_MEMORY. */
	CGN_RC (*read)(struct cgn_str answer, size_t max_ids, struct cgn_buf *out, struct cgn_err *err);
};
struct engine_tokens_ops {
	enum prompt_format format; /* of the messages that it is asked with */
	bool guess; /* such an engine may have it, or not: asked only where tokens = "engine" says so */
	struct engine_tokens_step chat[ENGINE_TOKENS_STEPS]; /* PROMPT_IS_CHAT */
	struct engine_tokens_step text[ENGINE_TOKENS_STEPS]; /* PROMPT_IS_TEXT */
};
/* Of an engine's kind as nodes name it; NULL: it can't be asked. */
const struct engine_tokens_ops *engine_tokens_of(struct cgn_str kind);
