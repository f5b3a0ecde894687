/* SPDX-License-Identifier: Apache-2.0 */
/* models: how the prompts of each model are tokenised. Control loop. */
#pragma once
#include "base/core/str.h"
#include "router/request/tokens/tokens.h"

struct gw_tokenizer_set;
struct router;

/* How the prompts of a model are tokenised. */
struct router_model {
	enum gw_tokens_mode mode;
	const char *why;
	const struct gw_tokenizer_set *tokenizers; /* NULL: none. */
	size_t n_ready;
	uint32_t block_tokens, block_bytes; /* |mode| decides which one counts. */
};
/* Return how the prompts of model |name| are tokenised now. */
struct router_model router_model_of(const struct router *r, struct cgn_str name);
/* Call |fn| for each model that a node has, then for each other configured one. */
void router_models_each(const struct router *r, void (*fn)(void *user, struct cgn_str name), void *user);
void router_models_log_changes(struct router *r); /* Log each model whose mode has changed. */
void router_models_close(struct router *r);
