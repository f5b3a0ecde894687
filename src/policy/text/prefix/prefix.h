/* SPDX-License-Identifier: Apache-2.0 */
/* prefix: a request body as a chain of digests, one per full block of the prompt in a canonical form. Prompts
 * with a common beginning have chains with a common beginning, however their JSON is written. Pure; any
 * thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/core/arena.h"
#include "base/digest/digest.h"
#include "base/json/json.h"

struct prefix_params {
	struct cgn_str model; /* The model that answers, not an alias. */
	struct cgn_str salt;  /* In place of the body's "cache_salt"; empty: the body's counts. */
	size_t block_bytes;   /* Canonical bytes per digest, at least 1. */
	size_t max_blocks;    /* Maximum length of a chain. */
};

struct prefix_chain {
	uint64_t *short_digests; /* From the arena. */
	size_t n;
	double length; /* Length in blocks, with the unfinished last one as a fraction; 0: unknown. */
};

/* Make the chain of |body|, as json_parse accepted it, of /v1/chat/completions, /v1/completions,
 * /v1/responses, /v1/messages or /v1/embeddings.
 *
 * The root covers the model and the body's "lora_path" (SGLang) or "lora" (llama.cpp) and "cache_salt". The
 * chain covers, in the order of the engines' templates: tools; the system text ("system", "instructions");
 * messages, "prompt" or "input". Key order, white space and escapes do not matter; a string and its one-part
 * form are the same. Images, audio and files count by the digest of their URL or data.
 *
 * Never fails: the chain is empty when the body is not understood or |a| is exhausted, and ends before an object
 * of more than 4,096 members or one that is nested too deep to be sorted. Takes from |a| 8 bytes per block, and
 * gives back at the end what it needs for sorting the members of tools and calls: at most 4 MiB. The time is
 * linear in the body's bytes. */
struct prefix_chain prefix_chain_make(const struct prefix_params *params, struct json_val body,
	struct cgn_arena *a);
/* Return the root D[-1] of the body's chain: |model|, the body's "lora_path" (SGLang) or "lora" (llama.cpp), and
 * |salt|, or the body's "cache_salt" if that is empty. |body|: an object that json_parse accepted. */
struct digest prefix_root(struct cgn_str model, struct cgn_str salt, struct json_val body);
