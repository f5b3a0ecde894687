/* SPDX-License-Identifier: Apache-2.0 */
/* ask: what a client wants, read from a request body of any of the four generating APIs. Pure. */
#pragma once
#include "sim/flags/flags.h"
#include "sim/request/fields.h"
#include "sim/text/text.h"

enum sim_api { SIM_CHAT, SIM_COMPLETIONS, SIM_RESPONSES, SIM_MESSAGES, SIM_API_COUNT };

#define SIM_PROMPTS_MAX 64  /* of one /v1/completions */
#define SIM_CHOICES_MAX 256 /* prompts times n */
#define SIM_TOP_MAX     20  /* logprobs of a token */

struct sim_request {
	enum sim_api api;
	unsigned model; /* index into cfg->models */
	bool stream, include_usage, is_tool;
	uint32_t n, n_prompts;
	int logprobs;             /* how many rivals with each token's logprob; -1: no logprobs */
	struct sim_limits limits; /* natural_tokens is per prompt: sim_request_natural_tokens */
	uint64_t seed;
	struct cgn_str tool_name; /* borrowed from body or arena */
	/* the beginning of the first prompt's answer, which the prompt ends with; borrowed from body or
	 * arena */
	struct cgn_str said;
	uint32_t said_tokens;                      /* of it */
	uint64_t origin;                           /* digest of what stands before it */
	struct cgn_buf script;                     /* owned: the answer is this text; empty: words */
	struct sim_chain prompts[SIM_PROMPTS_MAX]; /* owned */
};

struct sim_reader;
struct sim_request_env {
	const struct sim_cfg *cfg;
	struct cgn_arena *arena;   /* unescaped strings live here: keep it as long as the ask */
	struct sim_reader *reader; /* of a real model's vocabulary (vocab.h); NULL: the arithmetic one */
	uint64_t now;              /* Unix seconds */
};
/* False fills |no|. |body| and the arena are borrowed by the result. Call sim_request_fini either way. */
bool sim_request_parse(const struct sim_request_env *env, enum sim_api api, struct cgn_str body,
	struct sim_request *out, struct sim_refusal *no);
void sim_request_fini(struct sim_request *a);
/* Where words answering this prompt end by themselves. */
uint32_t sim_request_natural_tokens(const struct sim_cfg *cfg, uint64_t digest);

/* Find the model that the request names; the first served model when it names none. False with a 404 in |no| when it is not served. */
bool sim_model_find(const struct sim_request_env *env, const struct sim_fields *root, unsigned *model,
	struct sim_refusal *no);
bool sim_check_context(const struct sim_cfg *cfg, uint64_t prompt, uint64_t answer, struct sim_refusal *no);
