/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/request/render.h"

#include "sim/text/vocab.h"

static uint32_t role_marker(struct cgn_str role)
{
	if (cgn_str_is(role, "system") || cgn_str_is(role, "developer"))
		return SIM_TOK_SYSTEM;
	if (cgn_str_is(role, "assistant"))
		return SIM_TOK_ASSISTANT;
	if (cgn_str_is(role, "tool") || cgn_str_is(role, "function"))
		return SIM_TOK_TOOL;
	return SIM_TOK_USER;
}

static bool is_image(struct cgn_str type)
{
	return cgn_str_is(type, "image_url") || cgn_str_is(type, "input_image") || cgn_str_is(type, "image");
}

/* Render one part of a message: text as its tokens, images as patches, everything else (tool results, files)
 * as the text of its JSON. */
static void render_part(struct json_val part, struct cgn_arena *a, struct sim_chain *c)
{
	struct json_val text;
	if (part.type == JSON_STRING)
		sim_chain_text(c, json_str(part, a));
	else if (part.type == JSON_OBJECT && is_image(json_get_str(part, "type", a)))
		sim_chain_image(c, part.raw);
	else if (part.type == JSON_OBJECT && json_get(part, "text", &text) && text.type == JSON_STRING)
		sim_chain_text(c, json_str(text, a));
	else if (part.type != JSON_NULL)
		sim_chain_text(c, part.raw);
}

static void render_content(struct json_val content, struct cgn_arena *a, struct sim_chain *c)
{
	struct json_val part;
	if (content.type != JSON_ARRAY) {
		render_part(content, a, c);
		return;
	}
	struct json_iter it = json_iter_of(content);
	while (json_next_elem(&it, &part))
		render_part(part, a, c);
}

static void render_turn(uint32_t marker, struct json_val content, struct cgn_arena *a, struct sim_chain *c)
{
	sim_chain_add(c, marker);
	render_content(content, a, c);
	sim_chain_add(c, SIM_TOK_END);
}

static void render_message(struct json_val message, struct cgn_arena *a, struct sim_chain *c)
{
	enum { ROLE, CONTENT, CALLS, N };
	static const char *const keys[N] = {"role", "content", "tool_calls"};
	struct json_val at[N];
	json_pick(message, keys, N, at);
	sim_chain_add(c,
		role_marker(at[ROLE].type == JSON_STRING && at[ROLE].raw.p != NULL ? json_str(at[ROLE], a)
										   : CGN_STR("")));
	if (at[CONTENT].raw.p != NULL)
		render_content(at[CONTENT], a, c);
	if (at[CALLS].raw.p != NULL && at[CALLS].type != JSON_NULL)
		sim_chain_text(c, at[CALLS].raw);
	if (at[ROLE].raw.p == NULL) /* An item of the Responses API other than a message. */
		sim_chain_text(c, message.raw);
	sim_chain_add(c, SIM_TOK_END);
}

/* Render all elements of |list| except |but|. */
static bool render_list(struct json_val list, struct json_val but, const char *key, struct cgn_arena *a,
	struct sim_chain *c, struct sim_refusal *no)
{
	struct json_val message;
	struct json_iter it = json_iter_of(list);
	bool any = false;
	while (json_next_elem(&it, &message)) {
		if (message.type != JSON_OBJECT)
			return sim_refuse(no, 400, "invalid_type", key, "%s: each must be an object", key);
		if (message.raw.p != but.raw.p)
			render_message(message, a, c);
		any = true;
	}
	return any || sim_refuse(no, 400, "invalid_value", key, "%s: at least one is needed", key);
}

static void render_head(const struct sim_fields *root, enum sim_key system_key, struct cgn_arena *a,
	struct sim_chain *c)
{
	struct json_val value;
	if (sim_field(root, SIM_KEY_TOOLS, &value) && value.type == JSON_ARRAY && value.raw.n > 2) {
		sim_chain_add(c, SIM_TOK_SYSTEM);
		sim_chain_text(c, value.raw);
		sim_chain_add(c, SIM_TOK_END);
	}
	if (sim_field(root, system_key, &value) && value.type != JSON_NULL)
		render_turn(SIM_TOK_SYSTEM, value, a, c);
}

static bool render_messages(const struct sim_fields *root, struct json_val but, struct cgn_arena *a,
	struct sim_chain *c, struct sim_refusal *no)
{
	struct json_val messages;
	if (!sim_field(root, SIM_KEY_MESSAGES, &messages) || messages.type != JSON_ARRAY)
		return sim_refuse(no, 400, "missing", "messages", "messages: a list of messages is required");
	render_head(root, SIM_KEY_SYSTEM, a, c);
	return render_list(messages, but, "messages", a, c, no);
}

static bool render_responses(const struct sim_fields *root, struct cgn_arena *a, struct sim_chain *c,
	struct sim_refusal *no)
{
	struct json_val input;
	if (!sim_field(root, SIM_KEY_INPUT, &input) ||
		(input.type != JSON_STRING && input.type != JSON_ARRAY))
		return sim_refuse(no, 400, "missing", "input",
			"input: a string or a list of items is required");
	render_head(root, SIM_KEY_INSTRUCTIONS, a, c);
	if (input.type == JSON_ARRAY)
		return render_list(input, (struct json_val){0}, "input", a, c, no);
	render_turn(SIM_TOK_USER, input, a, c);
	return true;
}

/* Map a chat API to policy/text/prompt's. */
static enum prompt_api sim_prompt_api(enum sim_api api)
{
	return api == SIM_RESPONSES ? PROMPT_RESPONSES : api == SIM_MESSAGES ? PROMPT_MESSAGES : PROMPT_CHAT;
}

/* Find the message to be continued, and its text. False when it cannot be continued; |*last| is unchanged
 * when no continuation is asked for. */
static bool find_resumed(const struct sim_fields *root, struct cgn_arena *a, struct json_val *last,
	struct cgn_str *resumed, struct sim_refusal *no)
{
	struct json_val flag, messages, each, content;
	if (!sim_field(root, SIM_KEY_CONTINUE, &flag) || !json_bool(flag, false))
		return true;
	if (json_get_bool(root->root, "add_generation_prompt", true))
		return sim_refuse(no, 400, "invalid_value", "continue_final_message",
			"Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
	if (!sim_field(root, SIM_KEY_MESSAGES, &messages) || messages.type != JSON_ARRAY)
		return true; /* A later check refuses this request. */
	for (struct json_iter it = json_iter_of(messages); json_next_elem(&it, &each);)
		*last = each;
	if (last->raw.p == NULL || !cgn_str_is(json_get_str(*last, "role", a), "assistant") ||
		!json_get(*last, "content", &content) || content.type != JSON_STRING)
		return sim_refuse(no, 400, "invalid_value", "continue_final_message",
			"continue_final_message: the last message must be the assistant's, with a text");
	*resumed = json_str(content, a);
	return true;
}

bool sim_render_chat(const struct sim_request_env *env, enum sim_api api, const struct sim_fields *root,
	struct sim_chain *c, struct cgn_str *resumed, struct sim_refusal *no)
{
	struct json_val last = {0};
	struct cgn_str text = {NULL, 0};
	if (api == SIM_CHAT && !find_resumed(root, env->arena, &last, &text, no))
		return false;
	bool open = last.raw.p != NULL;
	if (resumed != NULL)
		*resumed = text;
	if (env->reader != NULL)
		return sim_reader_chat(env->reader, sim_prompt_api(api), root->root, env->now,
			open && resumed != NULL, c, no);
	bool ok = api == SIM_RESPONSES ? render_responses(root, env->arena, c, no)
				       : render_messages(root, last, env->arena, c, no);
	if (ok && (open || json_get_bool(root->root, "add_generation_prompt", true)))
		sim_chain_add(c, SIM_TOK_ASSISTANT);
	if (ok && open && resumed == NULL)
		sim_chain_text(c, text);
	return ok;
}

bool sim_is_token(const struct sim_request_env *env, uint64_t id)
{
	char text[SIM_TOKEN_TEXT_MAX];
	if (env->reader != NULL && id < SIM_TOK_SYSTEM)
		return id < sim_vocab_size(sim_reader_vocab(env->reader));
	return id <= SIM_TOK_LAST && sim_token_text((uint32_t)id, text) > 0;
}

static bool add_id(const struct sim_request_env *env, struct json_val value, struct sim_chain *c,
	struct sim_refusal *no)
{
	uint64_t id = 0;
	if (value.type != JSON_NUMBER || !json_u64(value, &id) || !sim_is_token(env, id))
		return sim_refuse(no, 400, "invalid_value", "prompt",
			"prompt: %.*s is not a token id of this model",
			(int)(value.raw.n < 32 ? value.raw.n : 32), value.raw.p);
	sim_chain_add(c, (uint32_t)id);
	return true;
}

static bool render_ids(const struct sim_request_env *env, struct json_val list, struct sim_chain *c,
	struct sim_refusal *no)
{
	struct json_val id;
	struct json_iter it = json_iter_of(list);
	while (json_next_elem(&it, &id)) {
		if (!add_id(env, id, c, no))
			return false;
	}
	return true;
}

bool sim_render_string(const struct sim_request_env *env, struct cgn_str text, bool specials,
	struct sim_chain *c, struct sim_refusal *no)
{
	if (env->reader != NULL)
		return sim_reader_text(env->reader, text, specials, c, no);
	sim_chain_text(c, text);
	return true;
}

bool sim_render_prompt(const struct sim_request_env *env, struct json_val prompt, bool specials,
	struct sim_chain *c, struct sim_refusal *no)
{
	bool ok = false;
	if (prompt.type == JSON_STRING)
		ok = sim_render_string(env, json_str(prompt, env->arena), specials, c, no);
	else if (prompt.type == JSON_ARRAY)
		ok = render_ids(env, prompt, c, no);
	else
		return sim_refuse(no, 400, "invalid_type", "prompt",
			"prompt: a string, strings, or token ids");
	return ok &&
		(c->n_tokens > 0 ||
			sim_refuse(no, 400, "invalid_value", "prompt",
				"prompt: at least one token is needed"));
}

bool sim_is_prompts(struct json_val prompt)
{
	struct json_val first;
	if (prompt.type != JSON_ARRAY)
		return false;
	struct json_iter it = json_iter_of(prompt);
	return json_next_elem(&it, &first) && first.type != JSON_NUMBER;
}

bool sim_render_prompts(const struct sim_request_env *env, const struct sim_fields *root,
	struct sim_chain prompts[SIM_PROMPTS_MAX], uint32_t *n, struct sim_refusal *no)
{
	struct json_val prompt, each;
	bool specials = json_get_bool(root->root, "add_special_tokens", true);
	*n = 0;
	if (!sim_field(root, SIM_KEY_PROMPT, &prompt) || prompt.type == JSON_NULL)
		return sim_refuse(no, 400, "missing", "prompt", "prompt: field required");
	if (!sim_is_prompts(prompt)) {
		*n = 1;
		return sim_render_prompt(env, prompt, specials, &prompts[0], no);
	}
	struct json_iter it = json_iter_of(prompt);
	while (json_next_elem(&it, &each)) {
		if (*n == SIM_PROMPTS_MAX)
			return sim_refuse(no, 400, "invalid_value", "prompt", "prompt: at most %d prompts",
				SIM_PROMPTS_MAX);
		if (!sim_render_prompt(env, each, specials, &prompts[(*n)++], no))
			return false;
	}
	return true;
}

/* Return the tool that tool_choice names ({NULL, 0}: none), and whether a call is required. */
static struct cgn_str chosen_tool(const struct sim_fields *root, struct cgn_arena *a, bool *must, bool *never)
{
	struct json_val choice, inner;
	*must = *never = false;
	if (!sim_field(root, SIM_KEY_TOOL_CHOICE, &choice))
		return (struct cgn_str){0};
	struct cgn_str word =
		choice.type == JSON_STRING ? json_str(choice, a) : json_get_str(choice, "type", a);
	*must = cgn_str_is(word, "required") || cgn_str_is(word, "any") || cgn_str_is(word, "function") ||
		cgn_str_is(word, "tool");
	*never = cgn_str_is(word, "none");
	if (json_get(choice, "function", &inner))
		return json_get_str(inner, "name", a);
	return json_get_str(choice, "name", a);
}

/* Return the JSON of the last message's content when its role is user; else {NULL, 0}. */
static struct cgn_str last_words(const struct sim_fields *root, struct cgn_arena *a)
{
	struct json_val list, last = {0}, each;
	if (!sim_field(root, SIM_KEY_MESSAGES, &list) && !sim_field(root, SIM_KEY_INPUT, &list))
		return (struct cgn_str){0};
	if (list.type == JSON_STRING)
		return list.raw;
	struct json_iter it = json_iter_of(list);
	while (list.type == JSON_ARRAY && json_next_elem(&it, &each))
		last = each;
	if (!cgn_str_is(json_get_str(last, "role", a), "user") || !json_get(last, "content", &each))
		return (struct cgn_str){0};
	return each.raw;
}

bool sim_pick_tool(const struct sim_fields *root, struct cgn_arena *a, struct cgn_str *name,
	struct json_val *schema)
{
	struct json_val tools, tool, inner;
	bool must, never;
	struct cgn_str fixed = chosen_tool(root, a, &must, &never);
	if (never || !sim_field(root, SIM_KEY_TOOLS, &tools) || tools.type != JSON_ARRAY)
		return false;
	struct cgn_str resumed = must ? (struct cgn_str){0} : last_words(root, a);
	struct json_iter it = json_iter_of(tools);
	while (json_next_elem(&it, &tool)) {
		if (json_get(tool, "function", &inner))
			tool = inner;
		*name = json_get_str(tool, "name", a);
		bool fits = must ? fixed.n == 0 || cgn_str_eq(fixed, *name)
				 : resumed.n > 0 && name->n > 0 &&
				memmem(resumed.p, resumed.n, name->p, name->n) != NULL;
		if (name->n == 0 || !fits)
			continue;
		if (!json_get(tool, "parameters", schema))
			(void)json_get(tool, "input_schema", schema);
		return true;
	}
	return false;
}

bool sim_pick_format(const struct sim_fields *root, struct cgn_arena *a, struct json_val *schema)
{
	struct json_val format = {0}, inner;
	bool responses = sim_field(root, SIM_KEY_TEXT, &inner) && json_get(inner, "format", &format);
	if (!responses && !sim_field(root, SIM_KEY_RESPONSE_FORMAT, &format))
		return false;
	struct cgn_str type = json_get_str(format, "type", a);
	if (cgn_str_is(type, "json_object"))
		return true;
	if (!cgn_str_is(type, "json_schema"))
		return false;
	inner = format;
	if (json_get(format, "json_schema", &inner) || responses)
		(void)json_get(inner, "schema", schema);
	return true;
}
