/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/text/prompt/prompt_priv.h"

enum prompt_api prompt_api_of(struct cgn_str path)
{
	static const struct {
		const char *path;
		enum prompt_api api;
	} rows[] = {
		{"/v1/chat/completions", PROMPT_CHAT},
		{"/v1/completions", PROMPT_COMPLETIONS},
		{"/v1/responses", PROMPT_RESPONSES},
		{"/v1/messages", PROMPT_MESSAGES},
		{"/v1/messages/count_tokens", PROMPT_MESSAGES},
		{"/v1/embeddings", PROMPT_EMBEDDINGS},
	};
	struct cgn_str rest = path, bare = cgn_str_split(&rest, '?');
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (cgn_str_is(bare, rows[i].path))
			return rows[i].api;
	return PROMPT_NONE;
}

/* ---- chat ---- */

static void put_chat(struct prompt_writer *w, struct json_val messages)
{
	static const char *const keys[] = {"role", "content", "name", "tool_call_id", "tool_calls",
		"reasoning", "reasoning_content"};
	struct json_val elem, v[CGN_COUNT(keys)];
	if (messages.type != JSON_ARRAY) {
		w->lacks = PROMPT_LACKS_SHAPE;
		return;
	}
	for (struct json_iter it = json_iter_of(messages); w->lacks == NULL && json_next_elem(&it, &elem);) {
		json_pick(elem, keys, CGN_COUNT(keys), v);
		const struct prompt_message m = {.role = v[0],
			.content = v[1],
			.name = v[2],
			.tool_call_id = v[3],
			.tool_calls = v[4],
			.reasoning = prompt_is_there(v[5]) ? v[5] : v[6]};
		prompt_put_message(w, &m);
	}
}

static void put_messages(struct prompt_writer *w, enum prompt_api api, struct json_val body)
{
	struct json_val messages = {0};
	json_open(&w->j, '[');
	if (api == PROMPT_RESPONSES)
		prompt_put_responses(w, body);
	else if (api == PROMPT_MESSAGES)
		prompt_put_anthropic(w, body);
	else if (json_get(body, "messages", &messages))
		put_chat(w, messages);
	else
		w->lacks = PROMPT_LACKS_SHAPE;
	json_close(&w->j, ']');
}

/* Write the template's variables, with the effort last, because the last one counts. */
static void put_kwargs(struct cgn_buf *b, struct json_val kwargs, struct json_val effort)
{
	struct cgn_str inner = {NULL, 0};
	if (kwargs.type == JSON_OBJECT)
		inner = cgn_str_trim((struct cgn_str){kwargs.raw.p + 1, kwargs.raw.n - 2});
	cgn_buf_char(b, '{');
	cgn_buf_str(b, inner);
	cgn_buf_putz(b, inner.n > 0 ? ",\"reasoning_effort\":" : "\"reasoning_effort\":");
	cgn_buf_str(b, effort.raw);
	cgn_buf_char(b, '}');
}

enum chat_key {
	CHAT_TOOLS,
	CHAT_DOCUMENTS,
	CHAT_KWARGS,
	CHAT_EFFORT,
	CHAT_GENERATE,
	CHAT_CONTINUE,
	CHAT_SPECIALS,
	CHAT_KEYS
};

static bool read_chat(const struct prompt_ask *ask, struct json_val body, struct prompt *p,
	const char **lacks)
{
	static const char *const keys[CHAT_KEYS] = {[CHAT_TOOLS] = "tools",
		[CHAT_DOCUMENTS] = "documents",
		[CHAT_KWARGS] = "chat_template_kwargs",
		[CHAT_EFFORT] = "reasoning_effort",
		[CHAT_GENERATE] = "add_generation_prompt",
		[CHAT_CONTINUE] = "continue_final_message",
		[CHAT_SPECIALS] = "add_special_tokens"};
	struct json_val v[CHAT_KEYS];
	struct prompt_writer w = {.p = p, .j = json_out_to(&p->store), .format = ask->format};
	json_pick(body, keys, CHAT_KEYS, v);
	put_messages(&w, ask->api, body);
	size_t end = p->store.n;
	if (prompt_is_there(v[CHAT_TOOLS]) && w.lacks == NULL) {
		w.j = json_out_to(&p->store);
		prompt_put_tools(&w, v[CHAT_TOOLS]);
	}
	size_t tools_end = p->store.n;
	if (prompt_is_there(v[CHAT_EFFORT]))
		put_kwargs(&p->store, v[CHAT_KWARGS], v[CHAT_EFFORT]);
	*lacks = w.lacks != NULL ? w.lacks : p->store.bad ? PROMPT_LACKS_MEMORY : NULL;
	if (*lacks != NULL)
		return false;
	p->kind = PROMPT_IS_CHAT;
	p->messages = (struct json_val){JSON_ARRAY, {p->store.p, end}};
	if (tools_end > end)
		p->tools = (struct json_val){JSON_ARRAY, {p->store.p + end, tools_end - end}};
	p->documents = v[CHAT_DOCUMENTS];
	p->kwargs = v[CHAT_KWARGS];
	if (p->store.n > tools_end)
		p->kwargs = (struct json_val){JSON_OBJECT, {p->store.p + tools_end, p->store.n - tools_end}};
	p->add_generation_prompt = json_bool(v[CHAT_GENERATE], true);
	p->continue_final_message = json_bool(v[CHAT_CONTINUE], false);
	p->add_specials = json_bool(v[CHAT_SPECIALS], false);
	return true;
}

/* ---- texts and ids ---- */

static bool read_ids(const struct prompt_ask *ask, struct json_val list, struct prompt *p, const char **lacks)
{
	struct json_val elem;
	for (struct json_iter it = json_iter_of(list); p->n_ids < ask->max_ids && json_next_elem(&it, &elem);
		p->n_ids++) {
		uint64_t id = 0;
		if (!json_u64(elem, &id) || id > UINT32_MAX) {
			*lacks = PROMPT_LACKS_SHAPE;
			return false;
		}
		const uint32_t small = (uint32_t)id;
		cgn_buf_add(&p->store, &small, sizeof small);
	}
	p->kind = PROMPT_IS_IDS;
	p->ids = (const uint32_t *)(const void *)p->store.p;
	*lacks = p->store.bad ? PROMPT_LACKS_MEMORY : NULL;
	return !p->store.bad;
}

/* Read a text, ids, or a list of them. The first element counts: the others are other prompts of the same
 * request. */
static bool read_text(const struct prompt_ask *ask, struct json_val v, struct prompt *p, const char **lacks)
{
	struct json_val first = v;
	if (v.type == JSON_ARRAY) {
		struct json_iter it = json_iter_of(v);
		if (json_next_elem(&it, &first) && first.type == JSON_NUMBER)
			return read_ids(ask, v, p, lacks);
	}
	if (first.type == JSON_ARRAY && first.raw.p != v.raw.p)
		return read_ids(ask, first, p, lacks);
	if (first.type != JSON_STRING) {
		*lacks = PROMPT_LACKS_SHAPE;
		return false;
	}
	json_str_to(first, &p->store);
	p->kind = PROMPT_IS_TEXT;
	p->text = cgn_buf_view(&p->store);
	*lacks = p->store.bad ? PROMPT_LACKS_MEMORY : NULL;
	return !p->store.bad;
}

static bool read_prompt(const struct prompt_ask *ask, struct json_val body, struct prompt *p,
	const char **lacks)
{
	struct json_val v = {0};
	bool embeds = ask->api == PROMPT_EMBEDDINGS;
	if (!json_get(body, embeds ? "input" : "prompt", &v)) {
		*lacks = PROMPT_LACKS_SHAPE;
		return false;
	}
	p->add_specials = json_get_bool(body, "add_special_tokens", true);
	return read_text(ask, v, p, lacks);
}

/* ---- all ---- */

static const char *foreign_field(enum prompt_api api, struct json_val body)
{
	static const char *const keys[] = {"chat_template", "previous_response_id", "truncate_prompt_tokens"};
	struct json_val v[CGN_COUNT(keys)];
	json_pick(body, keys, CGN_COUNT(keys), v);
	if (prompt_is_there(v[0]))
		return PROMPT_LACKS_TEMPLATE;
	if (api == PROMPT_RESPONSES && prompt_is_there(v[1]))
		return PROMPT_LACKS_HISTORY;
	return prompt_is_there(v[2]) ? PROMPT_LACKS_TRUNCATE : NULL;
}

bool prompt_read(const struct prompt_ask *ask, struct json_val body, struct prompt *out, const char **lacks)
{
	struct json_val messages;
	CGN_MUST(ask->api != PROMPT_NONE);
	*out = (struct prompt){.store = {.limit = 2 * body.raw.n + 65536}};
	*lacks = foreign_field(ask->api, body);
	if (*lacks != NULL)
		return false;
	if (ask->api == PROMPT_COMPLETIONS ||
		(ask->api == PROMPT_EMBEDDINGS && !json_get(body, "messages", &messages)))
		return read_prompt(ask, body, out, lacks);
	return read_chat(ask, body, out, lacks);
}

void prompt_fini(struct prompt *p)
{
	cgn_buf_fini(&p->store);
}
