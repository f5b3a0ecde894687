/* SPDX-License-Identifier: Apache-2.0 */
/* opening: reads the opening of an answer with status 200, until it can tell an answer from a failure: the first event
 * of a stream, or the first members of a plain body; an error is read to its end. An engine that fails may say so behind a 200: in an event or a
 * document that is an error, in a stream or a body without content, or in a page of HTML. Comments and pings before the
 * first event say nothing. Bytes may be cut anywhere; no byte is kept. Pure; one thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"

enum opening_says {
	OPENING_MORE,   /* More bytes are needed. */
	OPENING_ANSWER, /* This is an answer, or can't be told from one. */
	/* The engine refuses the request itself, as a status of 400, 413 or 422 would: that says nothing against the engine,
	 * and another one would say the same. */
	OPENING_REFUSAL,
	OPENING_ERROR, /* The engine says that it failed. */
	OPENING_EMPTY, /* The answer ended without content. */
	OPENING_ALIEN, /* HTML, or bytes of a type that the route does not have. */
};

/* The answer that a route has. */
enum opening_route {
	OPENING_JSON,    /* A JSON document, or events with JSON. */
	OPENING_MEDIA,   /* Any bytes, also none; JSON is looked into. */
	OPENING_WHATEVER /* Nothing is looked into. */
};

#define OPENING_WORD 24 /* Bytes of a name or value that are compared. */
struct opening {
	enum opening_says says;
	/* Private members follow. */
	uint8_t shape, line, at;
	bool may_be_empty, seen, sniffed, after_cr, data, ping, is_key;
	bool failed;  /* The answer is an error; its end tells whose fault it is. */
	bool refused; /* The error has a word that blames the request. */
	bool digits;  /* A number is read. */
	uint8_t word_n, key_n;
	uint32_t depth, number, code; /* |code|: the error's status; 0: none was read. */
	char word[OPENING_WORD], key[OPENING_WORD];
};

/* Begin an answer with status 200. |type|: Content-Type; |encoding|: Content-Encoding. Empty: the field is absent. An encoded
 * answer is not looked into. */
void opening_init(struct opening *o, enum opening_route route, struct cgn_str type, struct cgn_str encoding);
/* Read the next bytes; |data| may be empty. Returns what is known now; a verdict does not change any more. */
enum opening_says opening_feed(struct opening *o, struct cgn_str data);
/* The answer has ended in good order. Never OPENING_MORE. */
enum opening_says opening_end(struct opening *o);
/* No more bytes are waited for. Never OPENING_MORE. */
enum opening_says opening_give_up(struct opening *o);
/* Return true if a stream whose last bytes are |tail| ended with an error event, as the engine's failure. A refusal of the
 * request is none, and an event that begins before |tail| is not judged. */
bool opening_tail_fails(struct cgn_str tail);
/* Return true if a stream whose last bytes are |tail| ended inside an event: the JSON behind its last blank line is not whole. The
 * last event needs no blank line behind it. |whole|: |tail| begins with an event; else one that begins before it is not judged. */
bool opening_tail_breaks_off(struct cgn_str tail, bool whole);
/* Say what is wrong, for people: "an error in the place of an answer". For verdicts from OPENING_ERROR on. */
const char *opening_text(enum opening_says says);
