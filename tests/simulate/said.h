/* SPDX-License-Identifier: Apache-2.0 */
/* said: the texts, calls and tokens of an answer of any of the APIs, whole or as a stream. */
#pragma once
#include "http.h"

#define SAID_CHOICES 4
struct said_choice {
	struct cgn_buf text, finish;
	struct cgn_buf calls;    /* Each tool call: a line with its name and its arguments */
	struct cgn_buf logprobs; /* A line for each token that has one */
};
struct said {
	struct said_choice choice[SAID_CHOICES];
	struct cgn_buf error, id, model;
	uint64_t prompt_tokens, completion_tokens, number;
	unsigned events;
	bool done;       /* The end that its API has */
	const char *odd; /* The rule of the API that does not hold; NULL: all hold */
};
void said_read(const struct http_got *got, struct said *s);
void said_fini(struct said *s);
/* Are two documents equal, but for what differs from answer to answer: ids, times, cached tokens, empty members? */
bool said_same(struct cgn_str a, struct cgn_str b);
