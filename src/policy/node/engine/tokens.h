/* SPDX-License-Identifier: Apache-2.0 */
/* tokens: how to ask an engine which token ids it would read for a prompt: the paths and bodies of each kind,
 * and how to read the answers. Pure.
 *   | kind | chat | text | read at |
 *   | vLLM, sim | /tokenize with messages | /tokenize with prompt | vLLM 0.26 |
 *   | openai_compat | like vLLM, which the engine may be | the same | |
 *   | llama.cpp | /apply-template, then /tokenize of its answer | /tokenize | 0.7.0 | */
#pragma once
#include "policy/node/engine/engine.h"
#include "policy/text/prompt/prompt.h"

#define ENGINE_TOKENS_STEPS 2

struct engine_tokens_step {
	const char *path; /* NULL: the step does not exist */
	/* Append the request's body. |before|: the result of the previous step; empty in the first step. */
	void (*ask)(struct cgn_str model, const struct prompt *p, struct cgn_str before,
		struct cgn_buf *body);
	/* Append the answer's result to |out|: token ids of 32 bits in native byte order, at most |max_ids|,
	 * in the last step; a text in an earlier step. CGN_BAD_GATEWAY: the answer is invalid;
	 * CGN_NO_MEMORY. */
	CGN_RC (*read)(struct cgn_str answer, size_t max_ids, struct cgn_buf *out, struct cgn_err *err);
};
struct engine_tokens_ops {
	enum prompt_format format; /* Format of the messages in the question */
	bool guess; /* Not every such engine can answer: asked only when tokens = "engine" is set */
	struct engine_tokens_step chat[ENGINE_TOKENS_STEPS]; /* For PROMPT_IS_CHAT */
	struct engine_tokens_step text[ENGINE_TOKENS_STEPS]; /* For PROMPT_IS_TEXT */
};
/* |kind|: as in the node's description. NULL: such an engine can't be asked. */
const struct engine_tokens_ops *engine_tokens_of(struct cgn_str kind);
