/* SPDX-License-Identifier: Apache-2.0 */
/* pick_world: a router's mind without a router: a cluster, what its nodes hold, the prompts that were seen,
 * and the chooser over all that. */
#pragma once
#include "base/core/buf.h"
#include "policy/chooser/chooser.h"
#include "policy/prefix/promptcache.h"

#define PICK_BLOCK_TOKENS  16
#define PICK_SYSTEM_TOKENS 512 /* of the prompt that all conversations begin with */
#define PICK_TURN_TOKENS   256 /* that a conversation comes back with */
#define PICK_TURNS         4   /* it had before */

struct pick_world {
	uint64_t seed;
	size_t n_nodes, tokens;
	struct route_rules rules;
	struct cluster *cluster;
	struct cluster_view *view;
	struct chooser_shared shared;
	struct chooser *chooser;
	struct promptcache *prompts;
	struct digest root;
	uint32_t *ids;     /* the prompt at hand */
	uint64_t *digests; /* its chain */
	struct prefix_tokens chain;
};

struct pick_cfg {
	uint64_t seed;
	size_t nodes, sent, tokens; /* |sent| of the nodes do not say what they hold */
	enum route_policy policy;
};
CGN_RC pick_world_init(struct pick_world *w, const struct pick_cfg *cfg, struct cgn_err *err);
void pick_world_fini(struct pick_world *w); /* also half made */

enum pick_kind { PICK_KNOWN, PICK_NEW, PICK_STRANGE /* without the system prompt, too */ };
/* A conversation as it was before its next turn: its prompt was tokenised here, and one node holds it. */
CGN_RC pick_world_tell(struct pick_world *w, uint64_t conversation, struct cgn_err *err);
/* The tokens of a prompt, in w->ids, as a tokenizer leaves them: just written. */
void pick_world_ids(struct pick_world *w, uint64_t conversation, enum pick_kind kind);
/* They become w->chain, as in a router that saw what pick_world_tell told: what is known is taken from the
 * prompt cache, the rest is digested and kept there. The keys of the prompt's beginnings are the tokenizer's
 * work and given. Returns how many digests had to be made. */
struct pick_keys {
	struct promptcache_key key[PICK_TURNS + 2]; /* the system prompt, turns before, and all of it */
};
void pick_world_keys(const struct pick_world *w, uint64_t conversation, enum pick_kind kind,
	struct pick_keys *out);
size_t pick_world_digest(struct pick_world *w, const struct pick_keys *keys);
