/* SPDX-License-Identifier: Apache-2.0 */
/* tokens: a prompt on its way to its chain. tokens.c decides and counts, engine.c asks engines, file.c uses
 * the model's own files. */
#pragma once
#include "policy/node/engine/tokens.h"
#include "policy/text/prefix/promptcache.h"
#include "policy/text/prompt/encode.h"
#include "router/request/tokens/tokens.h"
#include "router/shared/rules/tokenizer_set.h"

/* State of one model. */
struct tokens_model {
	struct cgn_str name; /* owned */
	struct metric_cell *chains[GW_TOKENS_MODES];
	unsigned failures;    /* failures of its engines in a row */
	cgn_nsec quiet_until; /* engines are not asked before this instant */
};

/* Scratch and word cache of one tokenizer: 4 MiB. */
struct tokens_encoder {
	struct gw_tokenizer_set *tokenizers; /* a reference */
	struct tokenizer_work *work;
};

struct gw_tokens_worker {
	uint32_t tag;
	struct telemetry *telemetry;
	struct promptcache *cache;
	struct promptcache_stats shown; /* counts of the cache that the metrics contain already */
	struct tokens_model *models;
	size_t n_models;
	struct tokens_model other; /* Models beyond the bound are counted together, and never paused */
	struct tokens_encoder *encoders;
	size_t n_encoders;
	size_t pooled; /* bytes of text on the pool */
	struct metric_cell *hits, *misses, *evictions, *bytes, *seconds[GW_TOKENS_MODES];
};

/* A question to an engine: one or two calls. */
struct tokens_ask {
	const struct engine_tokens_ops *ops; /* the first chosen node has these */
	const char *lacks;                   /* why there is no question; NULL: there is one */
	const struct engine_tokens_step *steps;
	unsigned step;
	struct gw_call call;
	struct teller *teller; /* the engine whose answer is due; NULL: none */
	bool loads;            /* the engine has to be loaded first */
	bool again;            /* the first engine did not answer: this is the second one, and the last */
	struct cgn_buf body, answer, before;
	int status;
	struct promptcache_key key;
};

#define PROMPT_TAG 0x64704e01U
struct gw_tokenizing {
	uint32_t tag;
	enum gw_tokens_mode mode; /* how tokens are being made */
	bool guess;               /* also ask engines that are not known to tell tokens */
	uint32_t block_tokens;
	struct digest root;
	cgn_nsec began;
	struct prompt p;
	struct tokens_ask ask;
	struct tokens_job *job; /* NULL: file.c has none */
};

/* Return the digest from which the keys of the prompt cache are derived: the chain's root, and the settings
 * that a reload may change under the same root. |fingerprint|: of the tokenizer's files; 0: an engine makes
 * the tokens. */
struct digest tokens_cache_root(const struct gw_tokenizing *p, uint64_t fingerprint);
/* Make the chain of |ids|, and keep it in the prompt cache under |key| unless that is NULL. */
void tokens_take(struct gw_req *r, const uint32_t *ids, size_t n, const struct promptcache_key *key);
/* Use |c|, whose digests are in the request's scratch arena, as the request's chain. */
void tokens_take_chain(struct gw_req *r, const struct prefix_tokens *c);
/* Use the chain of a cache entry. */
void tokens_take_cached(struct gw_req *r, const struct promptcache_entry *e);
/* Go to GW_ROUTE if the request is in GW_TOKENS: its chain is there, or tokens_fall_back makes it. */
void tokens_leave(struct gw_req *r);
/* Use blocks of bytes, and leave GW_TOKENS. |reason|: label of cgn_prompt_fallback_total; NULL: bytes are what the model's rules
 * ask for. */
void tokens_fall_back(struct gw_req *r, const char *reason);
/* Return the state of a model. */
struct tokens_model *tokens_model_of(struct gw_worker *w, struct cgn_str name);

/* engine.c: make the chain from an engine's tokens. Afterwards the chain is there, or the request is in
 * GW_TOKENS. */
void tokens_ask_start(struct gw_req *r);
enum gw_step tokens_ask_step(struct gw_req *r); /* the state GW_TOKENS */
void tokens_ask_end(struct gw_req *r);

/* file.c: make the chain by the model's own files. Afterwards the chain is there, or the request is in
 * GW_TOKENS. */
void tokens_file_start(struct gw_req *r, struct gw_tokenizer_set *tokenizers);
enum gw_step tokens_file_step(struct gw_req *r); /* the state GW_TOKENS */
void tokens_file_end(struct gw_req *r);
void tokens_encoders_close(struct gw_tokens_worker *t);
