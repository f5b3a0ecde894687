/* SPDX-License-Identifier: Apache-2.0 */
/* estimate: the tokens of an answer whose engine did not count them, from its events and its text. A model's answers that
 * were counted teach how many tokens an event has and how many bytes of text a token has; the figure that was the
 * steadier one is used. Pure; one thread. */
#pragma once
#include <stdint.h>

/* The size of the part of an answer that came. */
struct estimate_seen {
	uint64_t events; /* with text; 0: the answer is a document */
	uint64_t bytes;  /* the text, as JSON writes it */
};

struct estimate {
	double event_tokens, event_error; /* tokens in an event; 0: not known. Its mean relative error */
	double token_bytes, byte_error;
};
/* An answer with |seen| had |tokens| tokens. */
void estimate_learn(struct estimate *e, const struct estimate_seen *seen, uint64_t tokens);
uint64_t estimate_tokens(const struct estimate *e, const struct estimate_seen *seen);
