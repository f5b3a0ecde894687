/* SPDX-License-Identifier: Apache-2.0 */
/* engine: the facts of each kind of inference engine: its command line, readiness, load, models, token ids,
 * resume dialect, and the routes that it lacks. One file and one row of policy/config/engine_kinds.def per kind,
 * with the version that its facts were read at. Pure. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "policy/config/config.h"

/* ---- readiness and load ---- */
enum engine_readiness { ENGINE_READINESS_UP, ENGINE_READINESS_LOADING, ENGINE_READINESS_DOWN };

struct engine_load {
	uint32_t running, waiting; /* Requests */
	double kv_usage;           /* Used share of the KV cache, 0 to 1 */
	uint32_t slots;            /* 0: unknown */
	uint64_t kv_blocks_total;  /* 0: unknown */
	uint32_t kv_block_tokens;
	bool keeps_none; /* The engine says that it keeps no blocks after a request */
	double work;     /* Prompt tokens since the process started; 0: unknown */
	double made; /* Tokens of answers, and requests that lost their place in the KV cache, since then; 0: unknown */
};
/* True when the counters fell: the process is a new one and holds no block of the old one. */
bool engine_load_restarted(const struct engine_load *before, const struct engine_load *now);
/* True when the engine worked between two readings: a counter grew. Requests that merely arrive or leave prove nothing. */
bool engine_load_worked(const struct engine_load *before, const struct engine_load *now);

/* A GET whose answer reports load; several sources add up. */
struct engine_source {
	const char *path; /* NULL: no source */
	void (*read)(struct cgn_str body, struct engine_load *into);
	/* The question wakes an engine that sleeps, and keeps an idle one from falling asleep: asked only while there is
	 * something to learn. */
	bool wakes;
};
#define ENGINE_MAX_SOURCES 2

/* A GET whose answer tells which models are loaded. */
struct engine_models; /* models.h */
struct engine_loaded {
	const char *path; /* NULL: no source */
	/* Set the state of the models of the list. False: the answer is not of that kind */
	bool (*read)(struct cgn_str body, struct engine_models *into);
};
#define ENGINE_MAX_LOADED 2

/* ---- resume ---- */
/* How an engine continues an answer that another engine began. No engine repeats the part that it is given; every
 * engine continues at its very end. All of them continue a text completion from prompt and text.
 *   | kind | chat | read at |
 *   | sim | continue_final_message, as vLLM | |
 *   | llama_cpp | an assistant's message at the end is continued | 0.7.0, asked |
 *   | openai_compat | as engine.resume says: "continue" (vLLM, SGLang), "prefill" or "none" | documentation of
 *     vLLM 0.26 and SGLang 0.5 | */
enum engine_resume_shape {
	/* Append the assistant's message, "continue_final_message": true and "add_generation_prompt": false */
	ENGINE_RESUME_CONTINUE,
	ENGINE_RESUME_PREFILL, /* Append the assistant's message */
};
enum engine_resume_events {
	/* An event may have several tokens: vLLM's --stream-interval, speculative decoding */
	ENGINE_EVENTS_UNKNOWN,
	ENGINE_EVENTS_MOSTLY,     /* An event has one token, or the tokens of one character */
	ENGINE_EVENTS_ARE_TOKENS, /* An event has one token */
};
struct engine_resume {
	const char *name; /* As in the node's description */
	enum engine_resume_shape shape;
	enum engine_resume_events events;
	uint32_t text_default; /* max_tokens of a text completion that sets none; 0: unlimited */
};
/* Return the row of that name; NULL: none, so the engine cannot resume. */
const struct engine_resume *engine_resume_named(struct cgn_str name);
/* Return the name of an engine's row; "": the engine cannot resume. */
const char *engine_resume_of(const struct config_engine *e);

/* ---- kinds ---- */
struct engine_launch; /* launch.h */
struct engine_launch_ask;
struct engine_tokens_ops; /* tokens.h */
#define ENGINE_OFFLOAD(value) (1U << ((value) - OFFLOAD_NONE))
struct engine_ops {
	int kind;            /* ENGINE_* of the configuration */
	const char *read_at; /* Product and version that this row was checked against */
	const char *binary;  /* Program when none is configured; NULL: none */
	/* ENGINE_OFFLOAD of each kv_offload beside none that goes with agent.role both, and with prefill or decode */
	unsigned offloads, offloads_apart;
	/* Append the kind's arguments and environment to the plan. */
	CGN_RC (*launch)(const struct engine_launch_ask *ask, struct engine_launch *out, struct cgn_err *err);
	const char *ready_path; /* Path of the readiness probe */
	/* Time between readiness probes of a ready engine; longer for hosted APIs */
	cgn_nsec check_every;
	enum engine_readiness (*readiness)(int status); /* Judge the HTTP status of |ready_path| */
	struct engine_source sources[ENGINE_MAX_SOURCES];
	/* Where the engine says which of its models are loaded, beside the list; the first that answers counts */
	struct engine_loaded loaded[ENGINE_MAX_LOADED];
	/* Paths without query that the engine does not have; ends with NULL. NULL: none are known */
	const char *const *lacks;
	/* Paths without query that are of some kinds only, and that the engine has; ends with NULL. It lacks those that other
	 * kinds name here. NULL: not known, and the engine says itself what it lacks */
	const char *const *natives;
	/* Paths without query at which the engine keeps prompts of different "cache_salt" apart; ends with NULL. NULL: it
	 * does so nowhere */
	const char *const *salts;
	/* Each stream ends with the counts of its tokens, though the client did not ask (usage_find_own) */
	bool counts_streams;
	const struct engine_tokens_ops *tokens; /* How to ask for token ids (tokens.h); NULL: not possible */
	/* A request names a LoRA adapter as BASE:ADAPTER, with the first model's name; an adapter's name alone would
	 * get the base model's answer. */
	bool adapter_after_base;
	/* Why a cascade can't judge the engine's answers by log-probabilities; NULL: it can, as far as is known */
	const char *no_logprobs;
	/* Resume dialects of this kind; engine.resume names one of several, or none */
	const struct engine_resume *resumes;
	size_t n_resumes;
	/* A managed engine publishes KV events, and binds endpoints for them */
	bool publishes;
	/* Paths of the changes that a running engine makes, by enum engine_change (change.h); NULL: it makes none */
	const char *const *changes;
};
const struct engine_ops *engine_ops_of(int kind); /* Never NULL for a kind of the configuration */
/* |kind|: as in the node's description. NULL: unknown to this version. */
const struct engine_ops *engine_ops_named(struct cgn_str kind);
bool engine_lacks(const struct engine_ops *ops, struct cgn_str path /* query included */);
/* True if requests for |path| with different "cache_salt" share no prefix in the engine. */
bool engine_salts(const struct engine_ops *ops, struct cgn_str path /* query included */);

/* Return the kind of the engine that answered /v1/models with |body|; openai_compat when the list does not tell. Never
 * NULL. */
const struct engine_ops *engine_kind_guess(struct cgn_str body);

/* True if the engine, or what its kv_offload keeps, finds prompts whatever "cache_salt" a request has, although its kind
 * keeps salts apart: LMCache 0.5.6 in the engine's process; KVBM and FlexKV, of which it is not known; llama-cpp-python. */
bool engine_mixes_salts(const struct config_engine *e);

/* ---- capacity ---- */
#define ENGINE_TOKEN_BYTES 4 /* Estimated bytes of prompt in a token */
/* Return how many blocks of the router's digest chain fit into the engine's KV cache, as an upper bound;
 * |fallback| when the engine does not report the size of its cache. */
size_t engine_chain_capacity(const struct engine_load *l, uint32_t block_bytes, size_t fallback);

/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC engine_check_config(const struct config *c, struct cgn_err *err);
CGN_RC engine_check_nodes(const struct config *c, struct cgn_err *err);
