/* SPDX-License-Identifier: Apache-2.0 */
/* request: a request for an answer, parsed from the body of any of the four generating APIs. Pure. */
#pragma once
#include "sim/flags/flags.h"
#include "sim/request/fields.h"
#include "sim/request/handoff.h"
#include "sim/text/text.h"

enum sim_api { SIM_CHAT, SIM_COMPLETIONS, SIM_RESPONSES, SIM_MESSAGES, SIM_API_COUNT };

#define SIM_PROMPTS_MAX 64  /* Prompts of one /v1/completions. */
#define SIM_CHOICES_MAX 256 /* Prompts times n. */
#define SIM_TOP_MAX     20  /* Alternatives with logprobs for each token. */

struct sim_request {
	enum sim_api api;
	unsigned model; /* Index into cfg->models. */
	bool stream, include_usage, is_tool;
	uint32_t n, n_prompts;
	int logprobs;             /* Number of alternatives with each token's logprob; -1: no logprobs. */
	double difficulty;        /* As the body states it; below 0: it does not. */
	struct sim_limits limits; /* |natural_tokens| depends on the prompt: sim_request_natural_tokens. */
	uint64_t seed;
	struct sim_handoff_ask handoff;
	struct cgn_str tool_name; /* Borrowed from body or arena. */
	/* Beginning of the first prompt's answer, at the end of the prompt; borrowed from body or arena. */
	struct cgn_str resumed;
	uint32_t resumed_tokens;                   /* Tokens of |resumed|. */
	uint64_t origin;                           /* Digest of the prompt before |resumed|. */
	struct cgn_buf script;                     /* Owned: text of the answer; empty: words. */
	struct sim_chain prompts[SIM_PROMPTS_MAX]; /* Owned. */
};

struct sim_reader;
struct sim_request_env {
	const struct sim_cfg *cfg;
	struct cgn_arena *arena;   /* Holds unescaped strings; must live as long as the request. */
	struct sim_reader *reader; /* Tokenizer of a real model (vocab.h); NULL: the computed vocabulary. */
	uint64_t now;              /* Unix seconds. */
};
/* Parse |body|. The result borrows |body| and the arena. False fills |no|. Call sim_request_fini either
 * way. */
bool sim_request_parse(const struct sim_request_env *env, enum sim_api api, struct cgn_str body,
	struct sim_request *out, struct sim_refusal *no);
void sim_request_fini(struct sim_request *a);
/* Return the length at which words that answer this prompt end by themselves. */
uint32_t sim_request_natural_tokens(const struct sim_cfg *cfg, uint64_t digest);

/* Return the index of the served model |name|; n_models: there is none. */
unsigned sim_model_named(const struct sim_cfg *cfg, struct cgn_str name);
/* Find the model that the request names; the first served model when it names none. False with a 404 in |no|
 * when it is not served. */
bool sim_model_find(const struct sim_request_env *env, const struct sim_fields *root, unsigned *model,
	struct sim_refusal *no);
bool sim_check_context(const struct sim_cfg *cfg, uint64_t prompt, uint64_t answer, struct sim_refusal *no);
