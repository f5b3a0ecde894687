/* SPDX-License-Identifier: Apache-2.0 */
/* engine: what is known of each kind of inference engine: its command line, its readiness, its load, its
 * models, the routes it lacks. One file and one row of engine.c per kind, with the version that the facts
 * were read at. Pure. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/arena.h"
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "policy/config/config.h"

/* ---- where it is ---- */
struct engine_url {
	bool tls;
	char addr[300];      /* host:port, with the port always; "[v6]:port" */
	char authority[300]; /* for Host: as addr, without the scheme's own port */
	char host[256];      /* without port and brackets */
	unsigned port;
	char base[256];       /* path without the slash at its end; often empty */
	bool base_is_version; /* the base stands in for "/v1" */
};
/* http://host[:port][/base] or https://. CGN_INVALID names the URL and what is wrong with it. */
CGN_RC engine_url_parse(const char *url, struct engine_url *out, struct cgn_err *err);
/* Append the path to ask for. A base that names an API version (a segment such as "v1" or "v1beta", as in an
 * OpenAI base_url) takes the place of the path's "/v1"; what does not begin with /v1 goes to the base without
 * its trailing version. Any other base is put in front. */
void engine_url_path(const struct engine_url *u, struct cgn_str path, struct cgn_buf *out);

/* ---- how it is started ---- */
#define ENGINE_MAX_ARGS 320
struct engine_argv {
	struct cgn_arena *arena;
	const char *v[ENGINE_MAX_ARGS + 1]; /* v[0] is the program; NULL behind the last */
	size_t n;
	bool bad; /* too many, or the arena is exhausted */
};
/* A managed engine's command line. CGN_INVALID: the configuration lacks something, or the kind can't be
 * managed. */
CGN_RC engine_argv_make(const struct config_engine *e, const struct engine_url *u, struct engine_argv *out,
	struct cgn_err *err);

/* ---- how it is doing ---- */
enum engine_readiness { ENGINE_READINESS_UP, ENGINE_READINESS_LOADING, ENGINE_READINESS_DOWN };

struct engine_load {
	uint32_t running, waiting;
	double kv_usage;          /* 0..1 */
	uint32_t slots;           /* 0: unknown */
	uint64_t kv_blocks_total; /* 0: unknown */
	uint32_t kv_block_tokens;
	double work; /* a counter of prompt tokens since its process began; 0: unknown */
};
/* Its counters fell: it is another process than before, which holds nothing of what was sent there. */
bool engine_load_restarted(const struct engine_load *before, const struct engine_load *now);

struct engine_source { /* a GET whose answer tells of load; several add up */
	const char *path;
	void (*read)(struct cgn_str body, struct engine_load *into);
};
#define ENGINE_MAX_SOURCES 2

/* How an engine goes on with an answer that another one began: none repeats what it is given, and all begin
 * at its very end.
 *   | kind | chat | read at |
 *   | sim | continue_final_message, as vLLM | |
 *   | llama_cpp | an assistant's message at the end is continued | 0.7.0, asked |
 *   | openai_compat | engine.resume says: "continue" (vLLM, SGLang), "prefill" or "none" | vLLM 0.26, SGLang
 *   0.5: documentation | A text completion goes on from prompt and text in any of them. */
enum engine_resume_shape {
	/* the assistant's message, "continue_final_message": true, "add_generation_prompt": false */
	ENGINE_RESUME_CONTINUE,
	ENGINE_RESUME_PREFILL, /* the assistant's message */
};
enum engine_resume_events {
	/* one with text may be several tokens: vLLM's --stream-interval, guessed tokens */
	ENGINE_EVENTS_UNKNOWN,
	ENGINE_EVENTS_MOSTLY, /* it is one token, or those of a character that takes several */
	ENGINE_EVENTS_ARE_TOKENS,
};
struct engine_resume {
	const char *name; /* as nodes tell it */
	enum engine_resume_shape shape;
	enum engine_resume_events events;
	uint32_t text_default; /* max_tokens of a text completion that sets none; 0: as long as it likes */
};
/* NULL: it can't, or the name is not known here */
const struct engine_resume *engine_resume_named(struct cgn_str name);

struct engine_tokens_ops;
struct engine_ops {
	int kind;            /* ENGINE_* of the configuration */
	const char *read_at; /* product and version that this row was checked against */
	const char *binary;  /* program when none is configured; NULL: can't be managed */
	CGN_RC(*argv)
	(const struct config_engine *e, const struct engine_url *u, struct engine_argv *out,
		struct cgn_err *err);
	const char *ready_path;
	cgn_nsec check_every; /* readiness checks of an engine that is ready: hosted APIs are asked seldom */
	enum engine_readiness (*health)(int status);
	struct engine_source sources[ENGINE_MAX_SOURCES]; /* path NULL: none */
	/* paths, without query, that this version certainly has not; NULL-terminated, or NULL */
	const char *const *lacks;
	const struct engine_tokens_ops *tokens; /* how it tells token ids (tokens.h); NULL: it can't */
	/* name of its struct engine_resume; "": it can't continue */
	const char *(*resume)(const struct config_engine *e);
};
const struct engine_ops *engine_ops_of(int kind); /* never NULL for a kind of the configuration */
const struct engine_ops *engine_ops_named(struct cgn_str kind); /* as nodes name it; NULL: not known here */
bool engine_lacks(const struct engine_ops *ops, struct cgn_str path /* query included */);

/* Ids of an OpenAI model list, "aliases" of llama.cpp included, without doubles, at most |max|. The names are
 * in |a|. CGN_BAD_GATEWAY: not such a list. */
CGN_RC engine_models_read(struct cgn_str body, struct cgn_arena *a, size_t max, const char ***out, size_t *n,
	struct cgn_err *err);

#define ENGINE_TOKEN_BYTES 4 /* of prompt, about */
/* Blocks of the router's digest chain that fit into the engine's KV cache; |fallback| when the engine does
 * not tell its size. A token is taken as four bytes of prompt, so this is a bound and no promise. */
size_t engine_chain_capacity(const struct engine_load *l, uint32_t block_bytes, size_t fallback);
