/* SPDX-License-Identifier: Apache-2.0 */
/* body: the edit of a request by which llama-server answers it in a chosen slot. Read at llama.cpp 0.7.0:
 * "id_slot" is honoured in /v1/completions, /v1/chat/completions and /v1/responses (/v1/messages drops it);
 * of repeated keys the last one counts; a number beyond the last slot is taken modulo the number of slots.
 * Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/str.h"

struct slot_body {
	bool placeable; /* The request has one answer to one prompt, and names no slot */
	bool caches;    /* "cache_prompt" is not false: the slot's content may be used */
	/* "lora" is set: the client changes the weights, so the state is of no use to other requests */
	bool adapts;
	bool has_members;
	size_t at;      /* Offset after the opening brace */
	size_t end;     /* Offset of the closing brace; 0: the body is not an object */
	uint64_t owner; /* Made from "cache_salt"; 0: there is none */
};
/* Read a request. |path|: with its query. A body other than a JSON object is not placeable; the engine
 * reports its error. */
struct slot_body slot_body_read(struct cgn_str path, struct cgn_str body);
/* Write the text to insert at |b->at|; the rest of the body stays verbatim. Returns the length. */
#define SLOT_BODY_INSERT 32
size_t slot_body_insert(const struct slot_body *b, uint32_t slot, char out[SLOT_BODY_INSERT]);
/* Return the text to insert at |b->end|, so that the engine computes the whole prompt whatever the client says. */
struct cgn_str slot_body_forbid_reuse(const struct slot_body *b);
/* Append the request that computes the prompt of |body| in the slot, with an answer of one token that is not
 * streamed. |body| is placeable. |reuses|: the slot's content may be used. */
void slot_body_prefill(struct cgn_str path, struct cgn_str body, uint32_t slot, bool reuses,
	struct cgn_buf *out);
