/* SPDX-License-Identifier: Apache-2.0 */
/* played: a trace that is sent to a gateway: the words of its prompts, and what came of them. */
#pragma once
#include "base/json/json.h"
#include "io/http/http.h"
#include "lab/trace/trace.h"
#include "policy/engine/usage.h"

#define PLAYBACK_MAX_NODES 4096

struct playback_node {
	char name[132]; /* X-Cgn-Node */
	uint64_t requests, answer_tokens;
};
struct played {
	struct trace trace;
	size_t next; /* request */
	double speed;
	struct playback_node *nodes; /* owned */
	size_t n_nodes;
	uint64_t counted, prompt_tokens, cached_tokens; /* of answers that say so */
};
void playback_fini(struct played *p);
/* Words for request |i|, about one token each: equal ids have equal words, and so prompts share text exactly
 * as far as they share ids. */
void playback_prompt(const struct played *p, size_t i, struct cgn_buf *out);
/* When request |i| is due, since the start. */
cgn_nsec playback_due(const struct played *p, size_t i);
/* One answer ended: which node gave it (empty: not told), and its usage. Nodes beyond PLAYBACK_MAX_NODES and
 * without memory are not told apart. */
void playback_note(struct played *p, struct cgn_str node, const struct usage *u);
double playback_hit_ratio(const struct played *p);
/* the busiest node over the mean; 1 without nodes */
double playback_imbalance(const struct played *p, bool by_tokens);
void playback_json(const struct played *p, struct json_out *o); /* members of an open object */
void playback_text(const struct played *p, struct cgn_buf *out);
