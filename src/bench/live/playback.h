/* SPDX-License-Identifier: Apache-2.0 */
/* playback: a trace sent to a gateway: the words of its prompts, and statistics of the answers. */
#pragma once
#include "base/json/json.h"
#include "io/wire/http/head.h"
#include "lab/trace/trace.h"
#include "policy/node/engine/usagescan.h"

#define PLAYBACK_MAX_NODES 4096

struct playback_node {
	char name[132]; /* Value of X-Cgn-Node. */
	uint64_t requests, answer_tokens;
};
struct played {
	struct trace trace;
	size_t next; /* Index of the next request. */
	double speed;
	struct playback_node *nodes; /* Owned. */
	size_t n_nodes;
	uint64_t counted, prompt_tokens, cached_tokens; /* Sums over answers with usage. */
};
void playback_fini(struct played *p);
/* Append words for request |i|, about one token each. Equal ids have equal words, so prompts share text
 * exactly as far as they share ids. */
void playback_prompt(const struct played *p, size_t i, struct cgn_buf *out);
/* Return the arrival time of request |i| since the start. */
cgn_nsec playback_due(const struct played *p, size_t i);
/* Count an answer of |node| (empty: unknown) with its usage. Nodes beyond PLAYBACK_MAX_NODES, or without
 * memory, are not counted separately. */
void playback_note(struct played *p, struct cgn_str node, const struct usage *u);
/* Return the busiest node over the mean; 1 without nodes. */
void playback_json(const struct played *p, struct json_out *o); /* Writes members of an open object. */
void playback_text(const struct played *p, struct cgn_buf *out);
