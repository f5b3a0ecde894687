/* SPDX-License-Identifier: Apache-2.0 */
/* chunk: the parsed data of one event. */
#pragma once
#include "policy/answer/resume/resume_priv.h"

struct chunk { /* Absent members have raw.p NULL. */
	struct json_val root, names[RESUME_NAMES], choices, choice, delta, text /* text: a string. */, finish,
		usage;
	bool has_role, finishes, has_timings, has_probs;
	bool strange; /* The chunk has content that can't be continued. */
};
/* Return false when |data| is not such a chunk, or is an engine's error. */
bool resume_chunk_read(enum prompt_api api, struct cgn_str data, struct chunk *c);
/* Account for a chunk that the client gets with |text|, of which |came| bytes came now; the client had the
 * rest before. */
void resume_chunk_learn(struct resume *s, const struct chunk *c, struct cgn_str text, size_t came);
/* Append the event line if the event has a name. */
void resume_chunk_name(struct cgn_str name, struct cgn_buf *out);
/* Account for the chunk and append the part that the client gets. */
void resume_chunk_rewrite(struct resume *s, struct cgn_str name, const struct chunk *c, struct cgn_buf *out);
