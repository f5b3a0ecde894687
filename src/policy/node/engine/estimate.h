/* SPDX-License-Identifier: Apache-2.0 */
/* estimate: the tokens of an answer whose engine did not count them, from its events and its text. A model's answers that
 * were counted teach how many tokens an event has and how many bytes of text a token has; the figure that was the
 * steadier one is used. Pure; one thread. */
#pragma once
#include "base/core/str.h"

/* The size of the part of an answer that came. */
struct estimate_seen {
	uint64_t events; /* with text; 0: the answer is a document */
	uint64_t bytes;  /* the text, as JSON writes it */
};
/* Read |tail|, the last bytes of an answer of |bytes| bytes and |events| events (0: a document). The events before the tail
 * have as many bytes beside their text as those in it. |before|: of them, those without text at the front of a stream. */
void estimate_read(struct cgn_str tail, uint64_t bytes, uint64_t events, uint64_t before,
	struct estimate_seen *out);
/* Return true if |event| has text. */
bool estimate_has_text(struct cgn_str event);

struct estimate {
	double event_tokens, event_error; /* tokens in an event; 0: not known. Its mean relative error */
	double token_bytes, byte_error;
};
/* An answer with |seen| had |tokens| tokens. */
void estimate_learn(struct estimate *e, const struct estimate_seen *seen, uint64_t tokens);
uint64_t estimate_tokens(const struct estimate *e, const struct estimate_seen *seen);
