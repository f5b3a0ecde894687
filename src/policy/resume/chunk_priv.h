/* SPDX-License-Identifier: Apache-2.0 */
/* chunk: one event's data, taken apart. */
#pragma once
#include "policy/resume/resume_priv.h"

struct chunk { /* absent: raw.p NULL */
	struct json_val root, names[RESUME_NAMES], choices, choice, delta, text /* a string */, finish, usage;
	bool has_role, finishes, has_timings;
	bool strange; /* it says something that no text goes on from */
};
/* False: it is no such chunk, or an engine's error. */
bool resume_chunk_read(enum prompt_api api, struct cgn_str data, struct chunk *c);
/* The client gets it, with |text|, of which |came| bytes came: the rest it had before. */
void resume_chunk_learn(struct resume *s, const struct chunk *c, struct cgn_str text, size_t came);
void resume_chunk_name(struct cgn_str name, struct cgn_buf *out); /* the event line, if it has a name */
/* Learn it, and append what of it the client gets. */
void resume_chunk_rewrite(struct resume *s, struct cgn_str name, const struct chunk *c, struct cgn_buf *out);
