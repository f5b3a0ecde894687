/* SPDX-License-Identifier: Apache-2.0 */
/* engine, inside: what the files of the kinds share. */
#pragma once
#include "base/json/json.h"
#include "policy/engine/engine.h"
#include "policy/engine/tokens.h"

extern const struct engine_ops engine_llama_cpp, engine_openai_compat, engine_sim;

void engine_arg(struct engine_argv *a, const char *z); /* borrowed: must live as long as the arena */
void engine_arg_pair(struct engine_argv *a, const char *flag,
	const char *value); /* nothing when |value| is NULL */
void engine_arg_u64(struct engine_argv *a, const char *flag, uint64_t value);
void engine_arg_extra(struct engine_argv *a, const struct config_engine *e);
CGN_RC engine_argv_done(struct engine_argv *a, struct cgn_err *err);
/* vLLM's names; what is absent stays as it was. */
void engine_read_vllm(struct cgn_str text, struct engine_load *into);
/* 200 is up, 503 is loading, the rest is down: vLLM's and llama.cpp's /health. */
enum engine_readiness engine_readiness_plain(int status);
/* tokens.c: /tokenize as vLLM has it; its answer, which llama.cpp's looks like; a member that may be
 * absent. */
extern const struct engine_tokens_ops engine_tokens_vllm, engine_tokens_maybe;
CGN_RC engine_read_tokens(struct cgn_str answer, size_t max_ids, struct cgn_buf *out, struct cgn_err *err);
void engine_put_member(struct json_out *j, const char *key, struct json_val v);
