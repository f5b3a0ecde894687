/* SPDX-License-Identifier: Apache-2.0 */
/* pick_world: the state of a router without a router: a cluster, the contents of its nodes, the prompts seen
 * before, and the chooser. */
#pragma once
#include "base/core/buf.h"
#include "policy/route/chooser/chooser.h"
#include "policy/text/prefix/promptcache.h"

#define PICK_BLOCK_TOKENS  16
#define PICK_SYSTEM_TOKENS 512 /* Tokens of the system prompt that all conversations begin with. */
#define PICK_TURN_TOKENS   256 /* Tokens that a turn adds to a conversation. */
#define PICK_TURNS         4   /* Turns of a conversation so far. */

struct pick_world {
	uint64_t seed;
	size_t n_nodes, tokens;
	size_t prefill; /* Percentage of nodes with role prefill; all nodes can hand KV over then. */
	struct route_rules rules;
	struct cluster *cluster;
	struct cluster_view *view;
	struct chooser_shared shared;
	struct chooser *chooser;
	struct promptcache *prompts;
	struct digest root;
	uint32_t *ids;     /* Tokens of the current prompt. */
	uint64_t *digests; /* Chain of the current prompt. */
	struct prefix_tokens chain;
};

struct pick_cfg {
	uint64_t seed;
	size_t nodes, sent, tokens; /* |sent|: number of nodes that publish no KV events. */
	enum route_policy policy;
	size_t prefill; /* As in struct pick_world. */
};
CGN_RC pick_world_init(struct pick_world *w, const struct pick_cfg *cfg, struct cgn_err *err);
void pick_world_fini(struct pick_world *w); /* Accepts a partly initialized world. */

enum pick_kind { PICK_KNOWN, PICK_NEW, PICK_STRANGE /* PICK_STRANGE: without the system prompt too. */ };
/* Add a conversation as of its last turn: its prompt was tokenized here, and one node holds its blocks. */
CGN_RC pick_world_tell(struct pick_world *w, uint64_t conversation, struct cgn_err *err);
/* Write the tokens of a prompt into w->ids, as a tokenizer does just before the decision. */
void pick_world_ids(struct pick_world *w, uint64_t conversation, enum pick_kind kind);
/* Compute w->chain, as in a router that saw what pick_world_tell added: known beginnings come from the prompt
 * cache, the rest is digested and added there. The keys of the prompt's beginnings come from the tokenizer
 * and are given. Returns the number of digests computed. */
struct pick_keys {
	/* Keys of the system prompt, of each turn, and of the whole prompt. */
	struct promptcache_key key[PICK_TURNS + 2];
};
void pick_world_keys(const struct pick_world *w, uint64_t conversation, enum pick_kind kind,
	struct pick_keys *out);
size_t pick_world_digest(struct pick_world *w, const struct pick_keys *keys);
