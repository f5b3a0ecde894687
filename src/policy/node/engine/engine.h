/* SPDX-License-Identifier: Apache-2.0 */
/* engine: the facts of each kind of inference engine: its command line, readiness, load, models, token ids,
 * resume dialect, and the routes that it lacks. One file and one row of engine.c per kind, with the version
 * that its facts were read at. Pure. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/arena.h"
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "base/json/json.h"
#include "base/weburl/weburl.h"
#include "policy/config/config.h"

/* ---- launch ---- */
#define ENGINE_MAX_ARGS  320
#define ENGINE_MAX_ENV   88
#define ENGINE_MAX_FILES 2
/* A file that the engine reads at its start. */
struct engine_file {
	const char *path, *text;
};
/* The launch plan of a managed engine: all that its supervisor needs to spawn it. */
struct engine_launch {
	struct cgn_arena *arena;               /* Holds the strings; set by the caller */
	const char *argv[ENGINE_MAX_ARGS + 1]; /* argv[0] is the program; ends with NULL */
	size_t n_args;
	const char
		*env[ENGINE_MAX_ENV + 1]; /* "NAME=value", added to the agent's environment; ends with NULL */
	size_t n_env;
	struct engine_file files[ENGINE_MAX_FILES]; /* To be written before the start */
	size_t n_files;
	unsigned port;  /* Port that the engine listens on */
	uint32_t ranks; /* Data-parallel ranks */
	bool bad;       /* Too many arguments, or the arena is exhausted */
};
struct engine_launch_ask {
	const struct config *cfg;
	const struct config_engine *engine; /* An engine of that configuration */
	const struct weburl *url;
	const char *
		prefix; /* Begin of the paths of the engine's own files and sockets, below cluster.state_dir */
	const char *host;    /* The node's host, as other nodes reach it */
	bool slots_are_kept; /* The slot manager will save and restore the engine's slots */
};
/* True if the engine, or what its kv_offload keeps, finds prompts whatever "cache_salt" a request has, although its kind
 * keeps salts apart: LMCache 0.5.6 in the engine's process; KVBM and FlexKV, of which it is not known; llama-cpp-python. */
bool engine_mixes_salts(const struct config_engine *e);
/* Build the launch plan. CGN_INVALID: the configuration lacks a setting, has a combination that cannot work
 * (engine_offload_check), or engines of this kind cannot be managed. CGN_NO_MEMORY. */
CGN_RC engine_launch_make(const struct engine_launch_ask *ask, struct engine_launch *out,
	struct cgn_err *err);
/* True if a llama-server that was started by the plan keeps prompts of its slots in RAM (--cache-ram), and answers any
 * request from them. */
bool engine_caches_in_ram(const struct engine_launch *p);
/* Append the plan as {"argv": [...], "env": {...}, "files": {path: text}}. */
void engine_launch_put(const struct engine_launch *p, struct json_out *o);
/* CGN_INVALID: an engine of this kind cannot have this kv_offload, or not with this agent.role; the message
 * names both and the allowed values. */
CGN_RC engine_offload_check(const struct config_engine *e, int role, struct cgn_err *err);

/* Where the engine publishes its KV events and answers for missed ones. */
struct engine_events {
	const char *events, *replay; /* For the agent; NULL: none. In the arena, or the configuration's */
	const char *bind_events, *bind_replay; /* The same for a managed engine's command line */
	uint32_t ranks;
};
/* A managed vllm or sglang without kv_events gets two Unix sockets (|prefix|.events and .replay), or, with several
 * data-parallel ranks or a path that is too long, TCP ports from url's port + 1000 and + 1500 on. CGN_NO_MEMORY. */
CGN_RC engine_events_of(const struct config_engine *e, unsigned port, const char *prefix, struct cgn_arena *a,
	struct engine_events *out, struct cgn_err *err);

/* Return the engine's tensor-parallel size, as configured for it or for its model. */
uint32_t engine_tp(const struct engine_launch_ask *ask);

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
struct engine_models;
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

/* ---- kinds ---- */
struct engine_tokens_ops;
struct engine_ops {
	int kind;            /* ENGINE_* of the configuration */
	const char *read_at; /* Product and version that this row was checked against */
	const char *binary;  /* Program when none is configured; NULL: none */
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
	const struct engine_tokens_ops *tokens; /* How to ask for token ids (tokens.h); NULL: not possible */
	/* A request names a LoRA adapter as BASE:ADAPTER, with the first model's name; an adapter's name alone would
	 * get the base model's answer. */
	bool adapter_after_base;
	/* Why a cascade can't judge the engine's answers by log-probabilities; NULL: it can, as far as is known */
	const char *no_logprobs;
	const struct engine_resume *resumes; /* Resume dialects of this kind */
	size_t n_resumes;
	/* Return the name of the engine's struct engine_resume; "": the engine cannot resume. */
	const char *(*resume)(const struct config_engine *e);
};
const struct engine_ops *engine_ops_of(int kind); /* Never NULL for a kind of the configuration */
/* |kind|: as in the node's description. NULL: unknown to this version. */
const struct engine_ops *engine_ops_named(struct cgn_str kind);
bool engine_lacks(const struct engine_ops *ops, struct cgn_str path /* query included */);
/* True if requests for |path| with different "cache_salt" share no prefix in the engine. */
bool engine_salts(const struct engine_ops *ops, struct cgn_str path /* query included */);

/* ---- models ---- */
#define ENGINE_NAME_MAX    512                  /* Bytes of a model's name */
#define ENGINE_CARD_MAX    1024                 /* Bytes of a model's card */
#define ENGINE_MODELS_TEXT ((size_t)256 * 1024) /* Bytes of all names and cards of a list */

enum engine_model_state {
	ENGINE_MODEL_UNTOLD,  /* The engine says nothing of it: the model is there all the time */
	ENGINE_MODEL_LOADED,  /* Requests go on at once */
	ENGINE_MODEL_LOADING, /* Being loaded */
	ENGINE_MODEL_OUT,     /* The next request loads it */
	ENGINE_MODEL_ASLEEP,  /* The next request wakes it */
};
const char *engine_model_state_text(enum engine_model_state s); /* For people: "loadable" */

/* A name in an engine's list, and the list's facts about it. */
struct engine_model {
	const char *name;
	/* Members of a JSON object, without braces, as the list has them: "max_model_len":4096,... Empty: none */
	const char *card;
	uint64_t created; /* 0: not told */
	uint64_t context; /* Most tokens of a request; 0: not told */
	enum engine_model_state state;
};
struct engine_models {
	struct engine_model *v;
	size_t n;
	size_t left_out; /* Names beyond the bounds */
	uint32_t holds;  /* Models that the engine holds at once; 0: not told */
	uint32_t *table; /* By hash of the name: index in |v| + 1; 0: empty */
	size_t mask;
};
/* Read an OpenAI model list: ids, and llama.cpp's "aliases", without duplicates, in order. At most |max|
 * names, none above ENGINE_NAME_MAX, and at most ENGINE_MODELS_TEXT bytes of names and cards, where names
 * come first. All is in |a|. A card keeps root, max_model_len, meta, capabilities and the like; one above
 * ENGINE_CARD_MAX loses its last members. CGN_BAD_GATEWAY: the body is not such a list. CGN_NO_MEMORY. */
CGN_RC engine_models_read(struct cgn_str body, struct cgn_arena *a, size_t max, struct engine_models *out,
	struct cgn_err *err);
/* NULL: the list has no such name. */
const struct engine_model *engine_models_find(const struct engine_models *m, struct cgn_str name);
/* Return true if both lists have the same names in the same order. */
bool engine_models_named_alike(const struct engine_models *a, const struct engine_models *b);
/* Return true if both lists say the same, but for |created|, which is the time of the answer with some engines. */
bool engine_models_equal(const struct engine_models *a, const struct engine_models *b);

#define ENGINE_SERVED_MAX 512
/* How an engine's list of models and a configured name fit. */
struct engine_named {
	char served[ENGINE_SERVED_MAX +
		1]; /* The engine's only model, which has another name; empty: it knows the configured one */
	bool lacks; /* The list has several models, and none of that name */
	char listed[400]; /* The first names of the list, for people */
};
/* Compare an OpenAI model list with |model|. LoRAs of a model do not count as further models. False: |body|
 * is not such a list, or it has no model: it says nothing. */
bool engine_named_judge(struct cgn_str body, const char *model, struct engine_named *out);

/* Return the kind of the engine that answered /v1/models with |body|; openai_compat when the list does not tell. Never
 * NULL. */
const struct engine_ops *engine_kind_guess(struct cgn_str body);

/* ---- capacity ---- */
#define ENGINE_TOKEN_BYTES 4 /* Estimated bytes of prompt in a token */
/* Return how many blocks of the router's digest chain fit into the engine's KV cache, as an upper bound;
 * |fallback| when the engine does not report the size of its cache. */
size_t engine_chain_capacity(const struct engine_load *l, uint32_t block_bytes, size_t fallback);

/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC engine_check_config(const struct config *c, struct cgn_err *err);
CGN_RC engine_check_nodes(const struct config *c, struct cgn_err *err);
