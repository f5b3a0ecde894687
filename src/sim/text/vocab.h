/* SPDX-License-Identifier: Apache-2.0 */
/* vocab: a real model's tokenizer and chat template in the place of the arithmetic vocabulary (tokens.h).
 * What they read is what an engine with these files would hash: policy/prompt turns a body into messages as
 * vLLM does, policy/template renders them, policy/tokenizer cuts the text. A medium is SIM_IMAGE_TOKENS
 * patches, whose ids no tokenizer has. Pure. */
#pragma once
#include "base/core/err.h"
#include "policy/prompt/prompt.h"
#include "sim/text/refusal.h"
#include "sim/text/tokens.h"

struct sim_vocab; /* immutable; any thread */
/* |tokenizer|: the text of a tokenizer.json. |template|: of a tokenizer_config.json when it begins with "{"
 * and is JSON (its chat_template, bos_token and eos_token), else the template itself; empty: none, and chats
 * are refused. |err| names what is wrong. */
CGN_RC sim_vocab_new(struct cgn_str tokenizer, struct cgn_str template, struct sim_vocab **out,
	struct cgn_err *err);
void sim_vocab_free(struct sim_vocab **take);
uint32_t sim_vocab_size(const struct sim_vocab *v); /* highest id + 1 */
/* The bytes of |id| appended to |out|; false when there is no such token. */
bool sim_vocab_text(const struct sim_vocab *v, uint32_t id, struct cgn_buf *out);

struct sim_reader; /* of one thread */
CGN_RC sim_reader_new(const struct sim_vocab *v, struct sim_reader **out, struct cgn_err *err);
void sim_reader_free(struct sim_reader **take);
const struct sim_vocab *sim_reader_vocab(const struct sim_reader *r);
/* The text that the template makes of a chat; |now| is Unix seconds. False fills |no|. */
bool sim_reader_render(struct sim_reader *r, enum prompt_api api, struct json_val body, uint64_t now,
	struct cgn_buf *out, struct sim_refusal *no);
/* Take the start-of-text marker off the front of |text| if tokenizing with specials will put it there, as
 * llama.cpp does with what its template gives. */
void sim_reader_strip(struct sim_reader *r, struct cgn_buf *text);
/* What sim_reader_render gives, as tokens into |c|. |but_last|: as if the last message were still to be
 * written. */
bool sim_reader_chat(struct sim_reader *r, enum prompt_api api, struct json_val body, uint64_t now,
	bool but_last, struct sim_chain *c, struct sim_refusal *no);
/* |specials|: with what the tokenizer puts around a text. */
bool sim_reader_text(struct sim_reader *r, struct cgn_str text, bool specials, struct sim_chain *c,
	struct sim_refusal *no);
/* The first token of |piece|: what an answer's word counts as. */
uint32_t sim_reader_word(struct sim_reader *r, struct cgn_str piece);
