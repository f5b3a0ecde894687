/* SPDX-License-Identifier: Apache-2.0 */
/* render: turns the messages of the four APIs into tokens, and finds tools and formats. Pure. The template:
 * each message is a marker of its role, the tokens of its content, and an end marker. Offered tools come
 * first as a system message. The assistant's marker comes last, unless "add_generation_prompt" is false. A
 * real model's template replaces this one for all three chat APIs (vocab.h). */
#pragma once
#include "policy/text/prompt/prompt.h"
#include "sim/request/request.h"

/* Render the prompt of a request to |api| (not SIM_COMPLETIONS) into |c|. With "continue_final_message" the
 * last message, which must be the assistant's text, is returned in |*resumed| and left out of |c|; with
 * |resumed| NULL it is part of
 * |c|, without an end marker. */
bool sim_render_chat(const struct sim_request_env *env, enum sim_api api, const struct sim_fields *root,
	struct sim_chain *c, struct cgn_str *resumed, struct sim_refusal *no);
/* Render a string or a list of token ids into |c|. |specials|: including those that a real tokenizer puts
 * around a text. */
bool sim_render_prompt(const struct sim_request_env *env, struct json_val prompt, bool specials,
	struct sim_chain *c, struct sim_refusal *no);
/* True for a list of prompts, false for a list of token ids. */
bool sim_is_prompts(struct json_val prompt);
/* Render "prompt" (a string, strings, token ids, or lists of token ids), each prompt into its own chain. */
bool sim_render_prompts(const struct sim_request_env *env, const struct sim_fields *root,
	struct sim_chain prompts[SIM_PROMPTS_MAX], uint32_t *n, struct sim_refusal *no);
/* Render one text into |c|; |specials| as in sim_render_prompt. */
bool sim_render_string(const struct sim_request_env *env, struct cgn_str text, bool specials,
	struct sim_chain *c, struct sim_refusal *no);
bool sim_is_token(const struct sim_request_env *env, uint64_t id);

/* True when the answer is a tool call, with the tool's name and schema: tool_choice names a tool or requires
 * any ("required", Anthropic's "any"); or it is "auto" or absent, and the last message is the user's and
 * contains the name of an offered tool. The first matching tool is taken. */
bool sim_pick_tool(const struct sim_fields *root, struct cgn_arena *a, struct cgn_str *name,
	struct json_val *schema);
/* True when the answer must be JSON. |*schema| is unchanged for json_object. */
bool sim_pick_format(const struct sim_fields *root, struct cgn_arena *a, struct json_val *schema);
