/* SPDX-License-Identifier: Apache-2.0 */
/* tokens, inside: a prompt on its way to its chain. tokens.c decides and keeps the books, ask.c asks engines,
 * file.c uses the model's own files. */
#pragma once
#include "policy/engine/tokens.h"
#include "policy/prefix/promptcache.h"
#include "policy/prompt/encode.h"
#include "router/request/gateway.h"
#include "router/rules/tokenizer_set.h"

/* What a worker has seen of a model. */
struct tokens_model {
	struct cgn_str name; /* owned */
	struct metric_cell *chains[GW_TOKENS_MODES];
	unsigned failures;    /* of its engines, one after the other */
	cgn_nsec quiet_until; /* they are not asked before */
};

/* Scratch and word cache of one tokenizer: 4 MiB. */
struct tokens_encoder {
	struct gw_tokenizer_set *tokenizers; /* counted */
	struct tokenizer_work *work;
};

struct gw_tokens_worker {
	uint32_t tag;
	struct telemetry *telemetry;
	struct promptcache *cache;
	struct promptcache_stats shown; /* what of its counts is on /metrics already */
	struct tokens_model *models;
	size_t n_models;
	struct tokens_encoder *encoders;
	size_t n_encoders;
	size_t pooled; /* bytes of text on the pool */
	struct metric_cell *hits, *misses, *evictions, *bytes, *seconds[GW_TOKENS_MODES];
};

/* A question to an engine. */
struct tokens_ask {
	const struct engine_tokens_step *steps;
	unsigned step;
	struct gw_link *link;
	struct grpc_call *call; /* NULL: none open */
	const char *node_id;    /* in the request's arena */
	uint16_t slot;          /* of that node */
	/* the first that was asked did not answer: this is the second, and the last */
	bool again;
	struct cgn_buf body, answer, before;
	int status;
	bool closed;
	struct cgn_err why; /* once closed, or why it could not be started */
	struct promptcache_key key;
};

#define PROMPT_TAG 0x64704e01U
struct gw_prompt {
	uint32_t tag;
	enum gw_tokens_mode mode; /* that is being tried */
	bool guess;               /* ask engines too that may not tell tokens */
	struct json_val body;     /* in the request's body */
	uint32_t block_bytes, block_tokens;
	struct digest root;
	cgn_nsec began;
	struct prompt p;
	struct tokens_ask ask;
	struct tokens_job *job; /* file.c */
};

/* What keys of the prompt cache begin with: its chain's root, and what may change by a reload under the same
 * root. |fingerprint|: of the files that make its tokens; 0: an engine does. */
struct digest tokens_kept_root(const struct gw_prompt *p, uint64_t fingerprint);
/* The chain of these ids is the request's, and is kept under |key| unless that is NULL. */
void tokens_take(struct gw_req *r, const uint32_t *ids, size_t n, const struct promptcache_key *key);
/* whose digests are in the request's work arena */
void tokens_take_chain(struct gw_req *r, const struct prefix_tokens *c);
/* The same of an entry of the cache. */
void tokens_take_kept(struct gw_req *r, const struct promptcache_entry *e);
/* Blocks of bytes instead; |reason| is a label of cgn_prompt_fallback_total, NULL: that is how it is meant to
 * be. */
void tokens_fall_back(struct gw_req *r, const char *reason);
struct tokens_model *tokens_model_of(struct gw_worker *w, struct cgn_str name); /* NULL: out of memory */

/* ask.c: an engine's answer, from the cache or under way (then the request is in GW_TOKENS), or blocks of
 * bytes. */
void tokens_ask_start(struct gw_req *r);
enum gw_step tokens_ask_step(struct gw_req *r); /* in GW_TOKENS */
void tokens_ask_end(struct gw_req *r);

/* file.c: the same with the model's own files. */
void tokens_file_start(struct gw_req *r, struct gw_tokenizer_set *tokenizers);
enum gw_step tokens_file_step(struct gw_req *r); /* in GW_TOKENS */
void tokens_file_end(struct gw_req *r);
void tokens_encoders_close(struct gw_tokens_worker *t);
