/* SPDX-License-Identifier: Apache-2.0 */
/* engine, inside: what the kinds' files share. */
#pragma once
#include "policy/node/engine/engine.h"
#include "policy/node/engine/launch.h"
#include "policy/node/engine/models.h"
#include "policy/node/engine/tokens.h"

extern const char
	*const engine_no_natives[]; /* the engine has none of the routes that only some kinds have */
#define ENGINE(id, name) extern const struct engine_ops engine_##name;
#include "policy/config/engine_kinds.def"
#undef ENGINE

/* launch.c: append to the plan. */
/* |z| is borrowed and outlives the plan. */
void engine_arg(struct engine_launch *p, const char *z);
/* Append both, or nothing when |value| is NULL. */
void engine_arg_pair(struct engine_launch *p, const char *flag, const char *value);
/* Append the sizes that are configured, by the names that an engine has for them. */
struct engine_size_flags {
	const char *tp, *pp, *dp, *context, *memory;
};
void engine_arg_sizes(const struct engine_launch_ask *ask, const struct engine_size_flags *flags,
	struct engine_launch *p);
void engine_arg_u64(struct engine_launch *p, const char *flag, uint64_t value);
/* Append --enable-lora and the adapters of the settings after |flag|; without adapters, nothing. */
void engine_arg_loras(const struct config_engine *e, const char *flag, struct engine_launch *p);
void engine_arg_extra(struct engine_launch *p, const struct config_engine *e); /* extra_args */
/* events.c: append --kv-events-config, as vLLM and SGLang have it, if the engine publishes events. |enables|: the text also says
 * that events are enabled. */
CGN_RC engine_arg_events(const struct engine_launch_ask *ask, bool enables, struct engine_launch *p,
	struct cgn_err *err);
/* |assignment| is borrowed and outlives the plan; NULL: memory is short. */
void engine_env(struct engine_launch *p, const char *assignment);

/* A file at |prefix| + |suffix|. Returns its path. */
const char *engine_file_put(struct engine_launch *p, const char *prefix, const char *suffix,
	const struct cgn_buf *text);
/* The parts of a plan that several kinds share. */
const char *engine_weights(const struct config_engine *e); /* model_path, or model; NULL: neither */
CGN_RC engine_weights_check(const struct config_engine *e, struct cgn_err *err);
bool engine_program_is(const struct config_engine *e, const char *name); /* The file name of engine.binary */
/* Bytes of host memory that kv_offload takes. */
uint64_t engine_offload_ram(const struct config_engine *e);

/* vllm.c: read vLLM's metrics; a value that is absent stays unchanged. */
void engine_read_vllm(struct cgn_str text, struct engine_load *into);
/* 200 is up, 503 is loading, everything else is down: /health of vLLM and llama.cpp. */
enum engine_readiness engine_readiness_plain(int status);
/* More requests than this are not believed of one engine. */
#define ENGINE_REQUESTS_MOST 100000
/* Set |*into| to the gauge |name|, a number of requests, where the page has it and it can be believed. */
void engine_read_requests(struct cgn_str text, const char *name, uint32_t *into);
/* Set |into->made| from the counters |tokens| and |preempted| (NULL: the engine has none), where the page has them. */
void engine_read_made(struct cgn_str text, const char *tokens, const char *preempted,
	struct engine_load *into);
/* vllm.c: /tokenize as vLLM has it; |engine_tokens_maybe| for an engine that may be vLLM. */
extern const struct engine_tokens_ops engine_tokens_vllm, engine_tokens_maybe;
/* models.c: the loaded models, of Ollama's /api/ps and of LocalAI's /system. */
bool engine_loaded_ollama(struct cgn_str body, struct engine_models *into);
bool engine_loaded_localai(struct cgn_str body, struct engine_models *into);
/* tokens.c: read the answer of vLLM's and llama.cpp's /tokenize. */
CGN_RC engine_read_tokens(struct cgn_str answer, size_t max_ids, struct cgn_buf *out, struct cgn_err *err);
/* Append the member, unless it is absent or null. */
void engine_put_member(struct json_out *j, const char *key, struct json_val v);
