/* SPDX-License-Identifier: Apache-2.0 */
/* body: what an agent puts into a request so that llama-server answers it in a slot of its choice, read at
 * llama.cpp 0.7.0: "id_slot" counts in /v1/completions, /v1/chat/completions and /v1/responses (/v1/messages
 * drops it), of repeated keys the last one; a number beyond the last slot is taken modulo their count. Pure;
 * any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/str.h"

struct slot_body {
	bool placeable; /* one answer to one prompt, and the client names no slot itself */
	bool caches;    /* "cache_prompt" is not false: what the slot holds may be used */
	/* "lora": the client chooses how the weights are turned, so what is computed means nothing to
	 * others */
	bool adapts;
	bool has_members;
	size_t at; /* offset behind the opening brace */
};
/* |path| with its query. A body that is no JSON object is not placeable: the engine says what is wrong with
 * it. */
struct slot_body slot_body_read(struct cgn_str path, struct cgn_str body);
/* What goes in at |at|, the rest of the body being verbatim before and behind it. */
#define SLOT_BODY_INSERT 32
size_t slot_body_insert(const struct slot_body *b, uint32_t slot, char out[SLOT_BODY_INSERT]);
/* Append the request that computes |body|'s prompt in that slot and hardly more: one token, not streamed.
 * |body| is placeable. */
void slot_body_prefill(struct cgn_str path, struct cgn_str body, uint32_t slot, struct cgn_buf *out);
