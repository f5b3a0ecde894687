/* SPDX-License-Identifier: Apache-2.0 */
/* prefix: a request body as a chain of digests, one per full block of the prompt in a canonical form, so that
 * two prompts that begin alike have chains that begin alike, however their JSON is written. Pure; any
 * thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/core/arena.h"
#include "base/json/json.h"

struct prefix_params {
	struct cgn_str model; /* that will answer, not an alias */
	size_t block_bytes;   /* canonical bytes per digest, at least 1 */
	size_t max_blocks;    /* a longer prompt has a chain of this length */
};

struct prefix_chain {
	uint64_t *short_digests; /* from the arena */
	size_t n;
	double length; /* in blocks, what lies behind the last full one as a fraction of one; 0: not known */
};

/* |body|: what json_parse accepted, of /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages or
 * /v1/embeddings.
 *
 * The root is of model and the body's "lora_path" (SGLang) or "lora" (llama.cpp) and "cache_salt". Then in
 * this order, which is the order of the engines' templates: tools; the system text ("system",
 * "instructions"); messages, "prompt" or "input". Key order, white space and escapes do not matter; a string
 * and its one-part form are the same. Images, audio and files count by the digest of their URL or data.
 *
 * Never fails: a body that is not understood has an empty chain; an exhausted arena a shorter one. Takes from
 * |a| at most 8 bytes per block and, for tools and tool calls, 32 bytes per member. */
struct prefix_chain prefix_chain_make(const struct prefix_params *params, struct json_val body,
	struct cgn_arena *a);
