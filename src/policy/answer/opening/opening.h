/* SPDX-License-Identifier: Apache-2.0 */
/* opening: reads the opening of an answer whose status is a success, until it can tell an answer from a failure: the first
 * event of a stream, or the first members of a plain body; an error is read to its end. An engine that fails may say so behind
 * a 200: in an event or a document that is an error or has nothing of the route's answers, in a stream or a body without
 * content, or in a page of HTML. Comments and pings before the first event say nothing. Bytes may be cut anywhere; no byte is
 * kept. Pure; one thread. */
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
	/* The document, or the whole stream, has none of the members of the route's answers, and does not say why. */
	OPENING_OTHER,
	OPENING_EMPTY, /* The answer ended without content. */
	OPENING_ALIEN, /* HTML, or bytes of a type that the route does not have. */
};

/* The answer that a route has. */
enum opening_route {
	OPENING_JSON,    /* A JSON document, or events with JSON. */
	OPENING_MEDIA,   /* Any bytes, also none; JSON is looked into. */
	OPENING_WHATEVER /* Nothing is looked into. */
};

/* Bits of opening_answers beside those of members. */
#define OPENING_ENDS  (1U << 29) /* The end of a stream is told by an event (opening_tail_ends). */
#define OPENING_LISTS (1U << 30) /* An answer may be a list. */
#define OPENING_BYTES (1U << 31) /* An answer may be of type application/octet-stream. */

#define OPENING_WORD 24 /* Bytes of a name or value that are compared. */
struct opening {
	enum opening_says says;
	/* Private members follow. */
	uint8_t shape, line, at;
	char inside; /* The byte that began the value of an answer's member, until the next byte; 0: none did. */
	bool may_be_empty, seen, sniffed, after_cr, data, ping, named, is_key;
	bool strict;  /* Only the members of |answers| make an answer. */
	bool member;  /* An empty text was there as a member of an answer. */
	bool hollow;  /* An empty list or object was there as one. */
	bool ended;   /* The answer said that it ended as it should. */
	bool choice;  /* The first choice of an answer is read; its members tell. */
	bool chosen;  /* The first choice has a member. */
	bool filled;  /* Some member or event was there. */
	bool told;    /* A member that errors have was there. */
	bool listed;  /* The object stands in a list. */
	bool failed;  /* The answer is an error; its end tells whose fault it is. */
	bool refused; /* The error has a word that blames the request. */
	bool digits;  /* A number is read. */
	uint8_t word_n, key_n;
	uint32_t answers, depth, number, code; /* |code|: the error's status; 0: none was read. */
	char word[OPENING_WORD], key[OPENING_WORD];
};

/* Return the members that answers of the route |path| may have: bits of members (answers.c), OPENING_LISTS
 * OPENING_BYTES and OPENING_ENDS. 0: they are not known, and any document passes that is not an error. */
uint32_t opening_answers(struct cgn_str path);
/* Begin an answer. |answers|: as opening_answers returns. |type|: Content-Type; empty: the field is absent. The bytes that follow
 * are those of the decoded body. */
void opening_init(struct opening *o, enum opening_route route, uint32_t answers, struct cgn_str type);
/* Read the next bytes; |data| may be empty. Returns the verdict so far; one that is final does not change any
 * more. */
enum opening_says opening_feed(struct opening *o, struct cgn_str data);
/* The answer has ended in good order. Never OPENING_MORE. */
enum opening_says opening_end(struct opening *o);
/* The bytes until now are not held any longer. Returns the verdict by which they pass, never OPENING_MORE;
 * the reader may go on. */
enum opening_says opening_give_up(struct opening *o);
/* Return how many bytes at the beginning of |read|, the last bytes that were read or all of them, say nothing: whitespace, and
 * lines of comments and pings. 0 from the first byte of a document or an event on. */
size_t opening_blank(const struct opening *o, struct cgn_str read);
/* Return true if a stream whose last bytes are |tail| ended with an error event, as the engine's failure. A refusal of the
 * request is none, and an event that begins before |tail| is not judged. */
bool opening_tail_fails(struct cgn_str tail);
/* Return true if a stream whose last bytes are |tail| ended inside an event: the JSON behind its last blank line is not whole. The
 * last event needs no blank line behind it. |whole|: |tail| begins with an event; else one that begins before it is not judged. */
bool opening_tail_breaks_off(struct cgn_str tail, bool whole);
enum opening_ending {
	ENDING_UNKNOWN, /* The last events say nothing of an end, or begin before the tail. */
	ENDING_WHOLE,
	ENDING_CUT, /* The last event that tells is a part of the answer, and more has to follow. */
};
/* Judge the end of a stream whose last bytes are |tail|, of a route with OPENING_ENDS. An end are [DONE], a choice's finish_reason,
 * message_stop and a message_delta with a stop_reason, response.completed, .incomplete, .failed and .cancelled, "stop": true of
 * llama.cpp, and an error. |whole|: as above. */
enum opening_ending opening_tail_ends(struct cgn_str tail, bool whole);
/* Return true if the last event of a stream whose last bytes are |tail| is the one that clients take for its end, behind which
 * nothing comes: [DONE], message_stop, "stop": true of llama.cpp, or the end of a response. |whole|: as above. */
bool opening_tail_is_last(struct cgn_str tail, bool whole);
/* A stream ended behind |part| of an event, which has no blank line. Return how many bytes of it a client may get: the last event
 * needs no blank line, but a line that broke off in its field's name, a comment, and fields without data are of no use. */
size_t opening_part_useful(struct cgn_str part);
/* Name the error, for people: "an error in the place of an answer". For verdicts from OPENING_ERROR on. */
const char *opening_text(enum opening_says says);

/* Meaning of an answer's status. */
enum opening_status {
	STATUS_JUDGED,  /* A success: the body tells. */
	STATUS_NOTHING, /* A success without a document, or a redirection. */
	STATUS_REQUEST, /* The request is at fault, and no node is blamed. */
	STATUS_NODE, /* The node refuses what another one may answer: its key, its account, its models or its routes. */
	STATUS_BROKE, /* The engine failed, maybe by the request's doing: another node tells. */
	STATUS_FULL,  /* The node has no room. */
	STATUS_FAILED /* The engine failed. */
};
enum opening_status opening_status(int status);
