/* SPDX-License-Identifier: Apache-2.0 */
/* usagescan: reads what an answer cost while its bytes pass, cut anywhere: the counts that the engine tells, and the text
 * that came, for an estimate. No byte is kept and nothing is allocated, however long the answer is and wherever the
 * counts stand in it. Pure; one thread for each object.
 *
 * An answer is one document, documents behind each other, or an event stream; its first byte tells which. Counts are
 * "usage" at the top of a document, or in its "message", "response" or "x_groq"; llama-server's "timings" and SGLang's
 * "meta_info" at the top. Of a list, each element is a document, and their counts are added. A later count replaces an
 * earlier one, member by member. Member names are compared without their escapes. Text is what the model wrote: contents,
 * reasoning, names and arguments of calls; log-probabilities, ids and tokens are none. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "policy/node/engine/estimate.h"
#include "policy/node/engine/usage.h"

#define USAGESCAN_KEY    32 /* Longer than each name that matters. */
#define USAGESCAN_NUMBER 40 /* A longer number is not a count. */
#define USAGESCAN_FIELDS 16

struct usagescan {
	struct usage usage, own; /* |own|: of "timings" and "meta_info" */
	struct usage_timings timings;
	bool found, found_own, found_timings;
	/* Private members follow. */
	struct estimate_seen seen; /* sums of the events and documents that are over */
	uint8_t shape, line, matched, at;
	bool after_cr;
	/* The place in the document: open brackets, and one bit for each of the first 64 that is an object's. */
	uint32_t depth, base; /* |base|: 1 in a list of documents, else 0 */
	uint64_t objects;
	/* Depths at which a part of the document began; 0: outside. */
	uint32_t nest, text, skip, raw, counts;
	bool wants_key, in_detail, in_delta, is_text;
	uint16_t word; /* bits of the last member's name */
	uint8_t field; /* count that the last member has */
	uint8_t kind;  /* the kind of |counts| */
	uint8_t key_n, hex_n, number_n;
	uint32_t hex;
	char key[USAGESCAN_KEY], number[USAGESCAN_NUMBER];
	uint8_t states[USAGESCAN_FIELDS];
	uint64_t values[USAGESCAN_FIELDS];
	double prompt_ms;
	/* The event: bytes of the open string, of the text of "delta", and of other text. */
	uint64_t string, delta, other;
	bool sequenced;  /* Events that end a part of a response repeat it: only "delta" is new. */
	bool cumulative; /* Each event repeats the text of those before it. */
};

/* Read the next bytes of the answer. Zeroed memory is the beginning. */
void usagescan_feed(struct usagescan *s, struct cgn_str data);
/* Return the text that came, with that of the event or the document that is not over. */
struct estimate_seen usagescan_seen(const struct usagescan *s);
/* Read the "usage" of |text|, the beginning of an answer or all of it. False: there is none. */
bool usagescan_usage(struct cgn_str text, struct usage *out);
