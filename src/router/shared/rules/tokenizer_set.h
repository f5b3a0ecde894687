/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_set: makes tokens of one model's requests: its tokenizer, chat template and special tokens.
 * Immutable and counted; any thread.
 *
 * The tokenizer is [models.NAME] tokenizer. The template is chat_template, else chat_template.jinja beside
 * the tokenizer, else "chat_template" of tokenizer_config.json there (of a list, the templates named
 * "default" and, for requests with tools, "tool_use"), as transformers looks for it. bos, eos, unk and pad
 * come from tokenizer_config.json. Without a template chats cannot be tokenised. */
#pragma once
#include "policy/config/config.h"
#include "policy/text/prompt/prompt.h"
#include "policy/text/template/template.h"
#include "policy/text/tokenizer/tokenizer.h"

struct gw_template {
	struct template *compiled; /* NULL: no template. */
	enum prompt_format format;
};

struct gw_tokenizer_set {
	uint32_t tag;
	_Atomic uint32_t refs;
	struct cgn_arena arena; /* Owns the strings. */
	struct tokenizer *tokenizer;
	/* |tools| is for requests with tools, if the model has one for them. */
	struct gw_template chat, tools;
	struct cgn_str tokenizer_from;
	const char *template_from; /* Path of the template's file; NULL: no template. */
	struct cgn_str bos, eos, unk, pad;
	uint64_t fingerprint; /* Fingerprint of the files: path, inode, size and time. */
};

/* Load the files of |m|, which has a tokenizer; takes about a second for a large vocabulary. Fails with
 * CGN_INVALID when a file cannot be read or used: the message names model, file and component.
 * CGN_NO_MEMORY. */
CGN_RC gw_tokenizer_set_load(const struct config_model *m, struct gw_tokenizer_set **out,
	struct cgn_err *err);
uint64_t gw_tokenizer_set_fingerprint(const struct config_model *m);
void gw_tokenizer_set_ref(struct gw_tokenizer_set *k);
void gw_tokenizer_set_unref(struct gw_tokenizer_set **take);
