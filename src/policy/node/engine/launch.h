/* SPDX-License-Identifier: Apache-2.0 */
/* launch: the command line, environment and files of an engine that the agent starts. Pure. */
#pragma once
#include "base/core/arena.h"
#include "base/json/json.h"
#include "base/weburl/weburl.h"
#include "policy/config/config.h"

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
