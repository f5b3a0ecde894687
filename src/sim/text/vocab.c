/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/text/vocab_priv.h"

#include <stdlib.h>

#include "base/codec/codec.h"
#include "policy/text/template/template.h"
#include "policy/text/tokenizer/tokenizer.h"

#define VOCAB_TAG  0x51b0c0abU
#define READER_TAG 0x51b4eadeU

struct sim_vocab {
	uint32_t tag;
	struct tokenizer *tokenizer;
	struct template *template; /* NULL: none. */
	enum prompt_format format;
	struct cgn_buf bos, eos;
	struct vocab_texts texts;
};

struct sim_reader {
	uint32_t tag;
	const struct sim_vocab *v;
	struct tokenizer_work *work;
	struct tokenizer_ids ids; /* Ids of the text being encoded. */
	struct cgn_buf text;
};

/* Append a special token: "<s>", or {"content": "<s>", ...}. */
static void take_special(struct json_val root, const char *key, struct cgn_buf *out)
{
	struct json_val v;
	if (json_get(root, key, &v) && (v.type == JSON_STRING || json_get(v, "content", &v)) &&
		v.type == JSON_STRING)
		json_str_to(v, out);
}

/* Append the chat template: a string, or the entry "default" of a list of {"name", "template"}. */
static bool take_source(struct json_val root, struct cgn_buf *out)
{
	struct json_val v, each, name;
	if (!json_get(root, "chat_template", &v))
		return false;
	struct json_iter it = v.type == JSON_ARRAY ? json_iter_of(v) : (struct json_iter){0};
	while (v.type == JSON_ARRAY && json_next_elem(&it, &each)) {
		if (json_get(each, "name", &name) && cgn_str_is(name.raw, "\"default\"") &&
			json_get(each, "template", &each))
			v = each;
	}
	if (v.type == JSON_STRING)
		json_str_to(v, out);
	return v.type == JSON_STRING;
}

static CGN_RC read_template(struct sim_vocab *v, struct cgn_str text, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf source = {0};
	struct json_val root;
	struct cgn_str trimmed = cgn_str_trim(text);
	bool config = trimmed.n > 1 && trimmed.p[0] == '{' && trimmed.p[1] != '{' && trimmed.p[1] != '%' &&
		trimmed.p[1] != '#';
	if (config) {
		CGN_TRY(json_parse(text, &root, NULL, err));
		if (!take_source(root, &source))
			return CGN_FAIL(err, INVALID, "no \"chat_template\" in it");
		take_special(root, "bos_token", &v->bos);
		take_special(root, "eos_token", &v->eos);
		text = cgn_buf_view(&source);
	}
	v->format = prompt_format_of(text);
	return template_compile(text, &v->template, err);
}

CGN_RC sim_vocab_new(struct cgn_str tokenizer, struct cgn_str template, struct sim_vocab **out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(sim_vocab_free) struct sim_vocab *v = CGN_NEW(struct sim_vocab);
	struct json_val root;
	v->tag = VOCAB_TAG;
	CGN_TRY(tokenizer_load(tokenizer, &v->tokenizer, err));
	CGN_TRY(json_parse(tokenizer, &root, NULL, err));
	CGN_TRY(vocab_texts_read(root, (uint32_t)tokenizer_vocab(v->tokenizer), &v->texts, err));
	if (template.n > 0)
		CGN_TRY(read_template(v, template, err));
	*out = CGN_TAKE(&v);
	return CGN_OK;
}

void sim_vocab_free(struct sim_vocab **take)
{
	struct sim_vocab *v = CGN_TAKE_LIVE(take, VOCAB_TAG);
	if (v == NULL)
		return;
	v->tag = 0;
	tokenizer_free(&v->tokenizer);
	template_free(&v->template);
	cgn_buf_fini(&v->bos);
	cgn_buf_fini(&v->eos);
	vocab_texts_fini(&v->texts);
	free(v);
}

uint32_t sim_vocab_size(const struct sim_vocab *v)
{
	CGN_LIVE(v, VOCAB_TAG);
	return v->texts.n;
}

bool sim_vocab_text(const struct sim_vocab *v, uint32_t id, struct cgn_buf *out)
{
	CGN_LIVE(v, VOCAB_TAG);
	if (id >= v->texts.n)
		return false;
	uint32_t from = id > 0 ? v->texts.end[id - 1] : 0;
	cgn_buf_add(out, v->texts.bytes.p + from, v->texts.end[id] - from);
	return v->texts.end[id] > from;
}

struct sim_reader *sim_reader_new(const struct sim_vocab *v)
{
	CGN_LIVE(v, VOCAB_TAG);
	struct sim_reader *r = CGN_NEW(struct sim_reader);
	*r = (struct sim_reader){.tag = READER_TAG, .v = v, .work = tokenizer_work_new(v->tokenizer)};
	return r;
}

void sim_reader_free(struct sim_reader **take)
{
	struct sim_reader *r = CGN_TAKE_LIVE(take, READER_TAG);
	if (r == NULL)
		return;
	r->tag = 0;
	tokenizer_work_free(&r->work);
	tokenizer_ids_fini(&r->ids);
	cgn_buf_fini(&r->text);
	free(r);
}

const struct sim_vocab *sim_reader_vocab(const struct sim_reader *r)
{
	CGN_LIVE(r, READER_TAG);
	return r->v;
}

static bool render_prompt(struct sim_reader *r, const struct prompt *p, uint64_t now, struct cgn_buf *out,
	struct sim_refusal *no)
{
	const struct sim_vocab *v = r->v;
	struct cgn_err err = {0};
	struct template_ask ask = {
		.messages = p->messages,
		.tools = p->tools,
		.documents = p->documents,
		.kwargs = p->kwargs,
		.bos_token = cgn_buf_view(&v->bos),
		.eos_token = cgn_buf_view(&v->eos),
		.add_generation_prompt = p->add_generation_prompt && !p->continue_final_message,
		.continue_final_message = p->continue_final_message,
		.now = (int64_t)now,
	};
	if (cgn_ok(template_render(v->template, &ask, out, &err)))
		return true;
	if (err.code == CGN_NO_MEMORY)
		return sim_refuse(no, 500, NULL, NULL, "out of memory");
	return sim_refuse(no, 400, "invalid_value", "messages", "the chat template: %s", err.msg);
}

/* Remove the last message in place: a closing bracket replaces it. */
static void drop_last(struct prompt *p)
{
	struct json_val each, last = {0};
	for (struct json_iter it = json_iter_of(p->messages); json_next_elem(&it, &each);)
		last = each;
	size_t at = last.raw.p != NULL ? (size_t)(last.raw.p - p->messages.raw.p) : 1;
	while (at > 1 && p->messages.raw.p[at - 1] != ',')
		at--;
	at -= at > 1; /* The comma too. */
	p->store.p[(size_t)(p->messages.raw.p - p->store.p) + at] = ']';
	p->messages.raw.n = at + 1;
	p->add_generation_prompt = true;
	p->continue_final_message = false;
}

static bool read_chat(struct sim_reader *r, enum prompt_api api, struct json_val body, uint64_t now,
	bool but_last, struct prompt *p, struct cgn_buf *out, struct sim_refusal *no)
{
	const char *lacks = NULL;
	if (!prompt_read(&(struct prompt_ask){.api = api, .format = r->v->format}, body, p, &lacks))
		return sim_refuse(no, 400, "invalid_value", "messages", "there is no prompt in the body: %s",
			lacks);
	if (p->kind != PROMPT_IS_CHAT || r->v->template == NULL)
		return sim_refuse(no, 400, "invalid_value", "messages",
			"no chat template: start with --chat-template, or ask /v1/completions");
	if (but_last)
		drop_last(p);
	return render_prompt(r, p, now, out, no);
}

bool sim_reader_render(struct sim_reader *r, enum prompt_api api, struct json_val body, uint64_t now,
	struct cgn_buf *out, struct sim_refusal *no)
{
	CGN_LIVE(r, READER_TAG);
	CGN_ON_EXIT(prompt_fini) struct prompt p = {0};
	return read_chat(r, api, body, now, false, &p, out, no);
}

void sim_reader_strip(struct sim_reader *r, struct cgn_buf *text)
{
	CGN_LIVE(r, READER_TAG);
	struct cgn_str bos = cgn_buf_view(&r->v->bos);
	struct cgn_err err;
	uint32_t id = 0;
	r->ids.n = 0;
	if (bos.n == 0 || text->n < bos.n || memcmp(text->p, bos.p, bos.n) != 0 ||
		!tokenizer_token_id(r->v->tokenizer, bos, &id))
		return;
	if (cgn_ok(tokenizer_encode(r->v->tokenizer, r->work, CGN_STR(""), TOKENIZER_HEAD, &r->ids, &err)) &&
		r->ids.n > 0 && r->ids.ids[0] == id)
		cgn_buf_eat(text, bos.n);
}

/* Add the tokens of |text| to the chain; |flags| are those of tokenizer.h. */
static bool encode_text(struct sim_reader *r, struct cgn_str text, unsigned flags, struct sim_chain *c,
	struct sim_refusal *no)
{
	struct cgn_err err = {0};
	r->ids.n = 0;
	if (!cgn_ok(tokenizer_encode(r->v->tokenizer, r->work, text, flags, &r->ids, &err)))
		return sim_refuse(no, err.code == CGN_NO_MEMORY ? 500 : 400, "invalid_value", NULL,
			"the tokenizer: %s", err.msg);
	for (size_t i = 0; i < r->ids.n; i++)
		sim_chain_add(c, r->ids.ids[i]);
	return true;
}

/* Find the next placeholder of a medium: PROMPT_MEDIUM and the digits of its digest. */
static bool cut_medium(struct cgn_str *rest, struct cgn_str *before, struct cgn_str *medium)
{
	for (size_t at = 0; at < rest->n;) {
		const char *hit = memmem(rest->p + at, rest->n - at, PROMPT_MEDIUM, sizeof PROMPT_MEDIUM - 1);
		size_t from = hit != NULL ? (size_t)(hit - rest->p) : rest->n, digits = 0;
		at = from + sizeof PROMPT_MEDIUM - 1;
		while (at + digits < rest->n && digits < 2 * (size_t)DIGEST_BYTES &&
			hex_digit(rest->p[at + digits]) >= 0)
			digits++;
		if (digits < 2 * (size_t)DIGEST_BYTES)
			continue;
		*before = (struct cgn_str){rest->p, from};
		*medium = (struct cgn_str){rest->p + from, PROMPT_MEDIUM_TEXT};
		*rest = (struct cgn_str){rest->p + from + PROMPT_MEDIUM_TEXT,
			rest->n - from - PROMPT_MEDIUM_TEXT};
		return true;
	}
	return false;
}

static bool encode_chat(struct sim_reader *r, const struct prompt *p, struct sim_chain *c,
	struct sim_refusal *no)
{
	unsigned head = p->add_specials ? TOKENIZER_HEAD : 0U, tail = p->add_specials ? TOKENIZER_TAIL : 0U;
	struct cgn_str rest = cgn_buf_view(&r->text), before, medium;
	for (size_t i = 0; i < p->n_media && cut_medium(&rest, &before, &medium); i++) {
		if (!encode_text(r, before, head, c, no))
			return false;
		sim_chain_image(c, medium);
		head = TOKENIZER_CONTINUED;
	}
	return encode_text(r, rest, head | tail, c, no);
}

bool sim_reader_chat(struct sim_reader *r, enum prompt_api api, struct json_val body, uint64_t now,
	bool but_last, struct sim_chain *c, struct sim_refusal *no)
{
	CGN_LIVE(r, READER_TAG);
	struct prompt p = {0};
	r->text.n = 0;
	bool ok = read_chat(r, api, body, now, but_last, &p, &r->text, no) && encode_chat(r, &p, c, no);
	prompt_fini(&p);
	if (r->text.cap > TOKENIZER_WORK_KEEP)
		cgn_buf_fini(&r->text);
	return ok;
}

bool sim_reader_text(struct sim_reader *r, struct cgn_str text, bool specials, struct sim_chain *c,
	struct sim_refusal *no)
{
	CGN_LIVE(r, READER_TAG);
	return encode_text(r, text, specials ? TOKENIZER_SPECIALS : 0U, c, no);
}

uint32_t sim_reader_word(struct sim_reader *r, struct cgn_str piece)
{
	CGN_LIVE(r, READER_TAG);
	struct cgn_err err;
	r->ids.n = 0;
	bool ok = piece.n > 0 && cgn_ok(tokenizer_encode(r->v->tokenizer, r->work, piece, 0, &r->ids, &err));
	return ok && r->ids.n > 0 ? r->ids.ids[0] : 0;
}
