/* SPDX-License-Identifier: Apache-2.0 */
/* render: from the four APIs' message shapes to tokens, tools and formats. Pure. The template: each message
 * is a marker of its role, the tokens of its content, an end marker; offered tools come first as a system
 * message; the assistant's marker comes last, unless "add_generation_prompt" is false. A real model's
 * template renders all three chat APIs in its place (vocab.h). */
#pragma once
#include "policy/prompt/prompt.h"
#include "sim/request/request.h"

/* The prompt of a request to |api| (not SIM_COMPLETIONS), as the template renders it, into |c|. With
 * "continue_final_message" the last message, which must be the assistant's text, is |*said| and not in it;
 * |said| NULL: it is in it, and open. */
bool sim_render_chat(const struct sim_request_env *env, enum sim_api api, const struct sim_fields *root,
	struct sim_chain *c, struct cgn_str *said, struct sim_refusal *no);
/* A string or a list of token ids into |c|. |specials|: with what a real tokenizer puts around a text. */
bool sim_render_prompt(const struct sim_request_env *env, struct json_val prompt, bool specials,
	struct sim_chain *c, struct sim_refusal *no);
/* A list whose elements are prompts, and not token ids? */
bool sim_is_prompts(struct json_val prompt);
/* "prompt": a string, strings, token ids, or lists of token ids: each into a chain of its own. */
bool sim_render_prompts(const struct sim_request_env *env, const struct sim_fields *root,
	struct sim_chain prompts[SIM_PROMPTS_MAX], uint32_t *n, struct sim_refusal *no);
/* A text of a request that is no list; |specials| as above. */
bool sim_render_string(const struct sim_request_env *env, struct cgn_str text, bool specials,
	struct sim_chain *c, struct sim_refusal *no);
bool sim_is_token(const struct sim_request_env *env, uint64_t id);
enum prompt_api sim_prompt_api(enum sim_api api); /* of a chat API */

/* Is the answer a tool call, and of which tool? Yes when tool_choice names one, or asks for any ("required",
 * Anthropic's "any"); with "auto" or nothing when the last message is the user's and holds the name of an
 * offered tool. First tool that fits. */
bool sim_pick_tool(const struct sim_fields *root, struct cgn_arena *a, struct cgn_str *name,
	struct json_val *schema);
/* Must the answer be JSON? |*schema| stays as it was for json_object. */
bool sim_pick_format(const struct sim_fields *root, struct cgn_arena *a, struct json_val *schema);
