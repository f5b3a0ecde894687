/* SPDX-License-Identifier: Apache-2.0 */
/* vocab: a real model's tokenizer and chat template instead of the computed vocabulary (tokens.h). Token ids
 * equal those of an engine with the same files: policy/text/prompt turns a body into messages as vLLM does,
 * policy/text/template renders them, policy/text/tokenizer cuts the text. A medium is SIM_IMAGE_TOKENS patches with ids
 * that no tokenizer has. Pure. */
#pragma once
#include "base/core/err.h"
#include "policy/text/prompt/prompt.h"
#include "sim/text/refusal.h"
#include "sim/text/tokens.h"

struct sim_vocab; /* Immutable; any thread. */
/* Load a vocabulary. |tokenizer|: the text of a tokenizer.json. |template|: a tokenizer_config.json when it
 * begins with "{" and is JSON (its chat_template, bos_token and eos_token are used), else the template
 * itself; empty: none, and chat requests are refused. |err| names the problem. */
CGN_RC sim_vocab_new(struct cgn_str tokenizer, struct cgn_str template, struct sim_vocab **out,
	struct cgn_err *err);
void sim_vocab_free(struct sim_vocab **take);
uint32_t sim_vocab_size(const struct sim_vocab *v); /* Highest id + 1. */
/* Append the bytes of |id| to |out|; false when there is no such token. */
bool sim_vocab_text(const struct sim_vocab *v, uint32_t id, struct cgn_buf *out);

struct sim_reader; /* Tokenizer state of one thread. */
struct sim_reader *sim_reader_new(const struct sim_vocab *v);
void sim_reader_free(struct sim_reader **take);
const struct sim_vocab *sim_reader_vocab(const struct sim_reader *r);
/* Append the text that the template renders for a chat; |now| is Unix seconds. False fills |no|. */
bool sim_reader_render(struct sim_reader *r, enum prompt_api api, struct json_val body, uint64_t now,
	struct cgn_buf *out, struct sim_refusal *no);
/* Remove a leading start-of-text marker from |text| when tokenizing with specials adds one, as llama.cpp does
 * with the output of a template. */
void sim_reader_strip(struct sim_reader *r, struct cgn_buf *text);
/* Add the tokens of the rendered chat to |c|. |but_last|: leave the last message out. */
bool sim_reader_chat(struct sim_reader *r, enum prompt_api api, struct json_val body, uint64_t now,
	bool but_last, struct sim_chain *c, struct sim_refusal *no);
/* Add the tokens of |text|. |specials|: including those that the tokenizer puts around a text. */
bool sim_reader_text(struct sim_reader *r, struct cgn_str text, bool specials, struct sim_chain *c,
	struct sim_refusal *no);
/* Return the first token of |piece|, which stands for an answer's word. */
uint32_t sim_reader_word(struct sim_reader *r, struct cgn_str piece);
