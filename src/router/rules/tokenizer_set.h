/* SPDX-License-Identifier: Apache-2.0 */
/* kit: what turns one model's requests into tokens here: its tokenizer, its chat template, its special
 * tokens. Immutable, counted; any thread.
 *
 * The tokenizer is [models.NAME] tokenizer. The template is chat_template, else chat_template.jinja beside
 * the tokenizer, else "chat_template" of tokenizer_config.json there (of a list the ones named "default" and,
 * for requests with tools, "tool_use"), as transformers looks for it. bos, eos, unk and pad come from
 * tokenizer_config.json. Without a template chats can't be tokenised. */
#pragma once
#include "policy/config/config.h"
#include "policy/prompt/prompt.h"
#include "policy/template/template.h"
#include "policy/tokenizer/tokenizer.h"

struct gw_template {
	struct template *compiled; /* NULL: there is none */
	enum prompt_format format;
};

struct gw_tokenizer_set {
	uint32_t tag;
	_Atomic uint32_t refs;
	struct cgn_arena arena; /* the strings */
	struct tokenizer *tokenizer;
	struct gw_template chat, tools; /* tools: where it has one for them */
	struct cgn_str tokenizer_from;
	const char *template_from; /* file; NULL: there is none */
	struct cgn_str bos, eos, unk, pad;
	uint64_t fingerprint; /* of its files: path, inode, size and time */
};

/* CGN_INVALID: a file can't be read, or is not what this build takes; the sentence names model, file and
 * component. CGN_NO_MEMORY. The files are those of |m|, which has a tokenizer. Reads them; takes a second for
 * a large vocabulary. */
CGN_RC gw_tokenizer_set_load(const struct config_model *m, struct gw_tokenizer_set **out,
	struct cgn_err *err);
uint64_t gw_tokenizer_set_fingerprint(const struct config_model *m);
void gw_tokenizer_set_ref(struct gw_tokenizer_set *k);
void gw_tokenizer_set_unref(struct gw_tokenizer_set **take);
