/* SPDX-License-Identifier: Apache-2.0 */
/* said: what an answer of any of the APIs says, whole or as a stream. */
#pragma once
#include "http.h"

struct said {
	struct cgn_buf text, finish, error;
	uint64_t prompt_tokens, completion_tokens;
	unsigned events;
	bool done, odd; /* The end that its API has; an event that is not JSON, or one behind the end */
};
void said_read(const struct http_got *got, struct said *s);
void said_fini(struct said *s);
