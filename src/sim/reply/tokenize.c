/* SPDX-License-Identifier: Apache-2.0 */
/* Formats of vLLM 0.26 (entrypoints/serve/tokenize: a prompt, or messages as in a chat) and of llama.cpp 0.7
 * (tools/server: content; /apply-template), told apart by the keys. */
#include "sim/reply/vectors.h"
#include "sim/request/render.h"
#include "sim/text/vocab.h"

#include "sim/reply/reply.h"

#define TOKENS_MAX ((uint64_t)64 << 20) /* No body has more bytes. */

static void chain_begin(struct sim_chain *c)
{
	sim_chain_init(c,
		&(struct sim_chain_cfg){.block_tokens = 4096, .max_tokens = TOKENS_MAX, .keep = true});
}

static void put_text(const struct sim_vector_call *v, uint32_t id, struct cgn_buf *out)
{
	char text[SIM_TOKEN_TEXT_MAX];
	if (v->env->reader != NULL && id < SIM_TOK_SYSTEM)
		(void)!sim_vocab_text(sim_reader_vocab(v->env->reader), id, out);
	else
		cgn_buf_add(out, text, sim_token_text(id, text));
}

static void put_ids(const struct sim_chain *c, struct cgn_buf *out)
{
	cgn_buf_char(out, '[');
	for (uint64_t i = 0; i < c->n_tokens; i++) {
		if (i > 0)
			cgn_buf_char(out, ',');
		cgn_buf_u64(out, c->contents->tokens[i]);
	}
	cgn_buf_char(out, ']');
}

static void put_strings(const struct sim_vector_call *v, const struct sim_chain *c, struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	cgn_buf_char(out, '[');
	for (uint64_t i = 0; i < c->n_tokens; i++) {
		text.n = 0;
		put_text(v, c->contents->tokens[i], &text);
		if (i > 0)
			cgn_buf_char(out, ',');
		sim_put_string(out, cgn_buf_view(&text));
	}
	cgn_buf_char(out, ']');
}

static bool read_prompt(const struct sim_vector_call *v, const struct sim_fields *root, struct sim_chain *c,
	struct sim_refusal *no)
{
	struct json_val prompt;
	if (!sim_field(root, SIM_KEY_PROMPT, &prompt))
		return sim_render_chat(v->env, SIM_CHAT, root, c, NULL, no);
	if (prompt.type != JSON_STRING)
		return sim_refuse(no, 400, "invalid_type", "prompt", "prompt: a string is required");
	return sim_render_string(v->env, json_str(prompt, v->env->arena),
		json_get_bool(root->root, "add_special_tokens", true), c, no);
}

static bool tokenize_vllm(const struct sim_vector_call *v, const struct sim_fields *root, struct cgn_buf *out,
	struct sim_refusal *no)
{
	struct sim_chain c;
	chain_begin(&c);
	bool ok = read_prompt(v, root, &c, no);
	if (ok) {
		cgn_buf_fmt(out,
			"{\"count\":%llu,\"max_model_len\":%u,\"tokens\":", (unsigned long long)c.n_tokens,
			v->env->cfg->max_model_len);
		put_ids(&c, out);
		cgn_buf_putz(out, ",\"token_strs\":");
		if (json_get_bool(root->root, "return_token_strs", false))
			put_strings(v, &c, out);
		else
			cgn_buf_putz(out, "null");
		cgn_buf_char(out, '}');
	}
	sim_chain_fini(&c);
	return ok;
}

static bool tokenize_llama_cpp(const struct sim_vector_call *v, const struct sim_fields *root,
	struct json_val content, struct cgn_buf *out, struct sim_refusal *no)
{
	struct sim_chain c;
	struct cgn_str text =
		content.type == JSON_STRING ? json_str(content, v->env->arena) : (struct cgn_str){0};
	bool specials = json_get_bool(root->root, "add_special", false), ok = true;
	if (content.type != JSON_STRING)
		return sim_refuse(no, 400, "invalid_type", "content", "content: a string is required");
	chain_begin(&c);
	if (v->env->reader != NULL)
		ok = sim_render_string(v->env, text, specials, &c, no);
	else if (json_get_bool(root->root, "parse_special", true))
		sim_chain_marked(&c, text);
	else
		sim_chain_text(&c, text);
	if (ok) {
		cgn_buf_putz(out, "{\"tokens\":");
		put_ids(&c, out);
		cgn_buf_char(out, '}');
	}
	sim_chain_fini(&c);
	return ok;
}

bool sim_tokenize(const struct sim_vector_call *v, struct cgn_buf *out, struct sim_refusal *no)
{
	struct sim_fields f;
	struct json_val content;
	unsigned model = 0;
	if (!sim_body_parse(v->body, &f, no) || !sim_model_find(v->env, &f, &model, no))
		return false;
	if (json_get(f.root, "content", &content))
		return tokenize_llama_cpp(v, &f, content, out, no);
	return tokenize_vllm(v, &f, out, no);
}

bool sim_apply_template(const struct sim_vector_call *v, struct cgn_buf *out, struct sim_refusal *no)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct sim_fields f;
	struct sim_chain c;
	bool ok = true;
	if (!sim_body_parse(v->body, &f, no))
		return false;
	chain_begin(&c);
	if (v->env->reader != NULL) {
		ok = sim_reader_render(v->env->reader, PROMPT_CHAT, f.root, v->env->now, &text, no);
		sim_reader_strip(v->env->reader, &text);
	} else {
		ok = sim_render_chat(v->env, SIM_CHAT, &f, &c, NULL, no);
	}
	for (uint64_t i = 0; ok && i < c.n_tokens; i++)
		put_text(v, c.contents->tokens[i], &text);
	if (ok && text.bad)
		ok = sim_refuse(no, 500, NULL, NULL, "out of memory");
	sim_chain_fini(&c);
	if (!ok)
		return false;
	cgn_buf_putz(out, "{\"prompt\":");
	sim_put_string(out, cgn_buf_view(&text));
	cgn_buf_char(out, '}');
	return true;
}

bool sim_detokenize(const struct sim_vector_call *v, struct cgn_buf *out, struct sim_refusal *no)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct sim_fields f;
	struct json_val tokens, each;
	unsigned model = 0;
	if (!sim_body_parse(v->body, &f, no) || !sim_model_find(v->env, &f, &model, no))
		return false;
	if (!json_get(f.root, "tokens", &tokens) || tokens.type != JSON_ARRAY)
		return sim_refuse(no, 400, "missing", "tokens", "tokens: a list of token ids is required");
	struct json_iter it = json_iter_of(tokens);
	while (json_next_elem(&it, &each)) {
		uint64_t id = 0;
		if (!json_u64(each, &id) || !sim_is_token(v->env, id))
			return sim_refuse(no, 400, "invalid_value", "tokens",
				"tokens: %.*s is not a token id of this model",
				(int)(each.raw.n < 32 ? each.raw.n : 32), each.raw.p);
		put_text(v, (uint32_t)id, &text);
	}
	cgn_buf_putz(out, "{\"prompt\":");
	sim_put_string(out, cgn_buf_view(&text));
	cgn_buf_char(out, '}');
	return !text.bad || sim_refuse(no, 500, NULL, NULL, "out of memory");
}
