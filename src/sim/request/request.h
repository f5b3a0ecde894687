/* SPDX-License-Identifier: Apache-2.0 */
/* ask: what a client wants, read from a request body of any of the four generating APIs. Pure. */
#pragma once
#include "base/json/json.h"
#include "sim/flags/flags.h"
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

/* How a request failed, in OpenAI's terms. */
struct sim_refusal {
	int status;
	const char *type, *code, *param; /* static; code and param may be NULL */
	char msg[400];
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

/* The members of a request, found once. */
enum sim_key {
#define KEY(id, name) SIM_KEY_##id,
#include "sim/request/keys.def"
#undef KEY
	SIM_KEY_COUNT
};
struct sim_fields {
	struct json_val root, at[SIM_KEY_COUNT];
};
const char *sim_key_name(enum sim_key key);
bool sim_field(const struct sim_fields *f, enum sim_key key, struct json_val *out); /* false when absent */

/* Shared with the other routes. */
bool sim_refuse(struct sim_refusal *no, int status, const char *code, const char *param, const char *fmt, ...)
	__attribute__((format(printf, 5, 6))); /* always false */
/* a JSON object, or 400 */
bool sim_body_parse(struct cgn_str body, struct sim_fields *out, struct sim_refusal *no);
/* or 404 */
bool sim_model_find(const struct sim_request_env *env, const struct sim_fields *root, unsigned *model,
	struct sim_refusal *no);
bool sim_check_context(const struct sim_cfg *cfg, uint64_t prompt, uint64_t answer, struct sim_refusal *no);
