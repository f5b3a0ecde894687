/* SPDX-License-Identifier: Apache-2.0 */
/* quote, inside: ratios, and the tables that they are found in. */
#pragma once
#include "policy/route/quote/quote.h"

/* ---- ratios.c ---- */

enum quote_end { QUOTE_LOW, QUOTE_MIDDLE, QUOTE_HIGH, QUOTE_ENDS };

/* Logarithms of the ratios of actual values to one end of their guesses. */
struct quote_ratios {
	float sorted[QUOTE_WINDOW];
	float ring[QUOTE_WINDOW];
	double out; /* Share of the ratios beyond the end, as learned; negative: beyond all of them. 0 samples: unused. */
};
struct quote_track {
	struct quote_ratios ends[QUOTE_ENDS];
	uint32_t n, next;
};
/* Add the ratios |logs| to |t|; the oldest give way. */
void quote_track_add(struct quote_track *t, const float logs[QUOTE_ENDS]);
/* Return the factor for the end |e|, outside of which the share |miss| of values is to be. */
double quote_track_factor(const struct quote_track *t, enum quote_end e, double miss);
/* Return the factor that the share |part| of ratios to the middle is not above. */
double quote_track_part(const struct quote_track *t, double part);
/* The end |e| was missed, or held, where the share |miss| is to be missed. An end beyond all ratios that holds moves in
 * |back| times as fast: the ratios themselves have followed by then. */
void quote_track_told(struct quote_track *t, enum quote_end e, bool missed, double miss, double back);

/* ---- book.c ---- */

/* Answers in one piece or not; each of all kinds, and of four kinds: with a limit or not, of a narrow group or not. */
#define QUOTE_KINDS 5
#define QUOTE_FORMS (2 * QUOTE_KINDS)
struct quote_model {
	uint64_t name; /* 0: free. */
	uint64_t used; /* Turn of the last use. */
	/* QUOTE_FIGURES each; NULL: there was no such request. */
	struct quote_track *tracks[QUOTE_PLACES * QUOTE_FORMS];
};
struct quote_lengths { /* The lengths of answers to a group of requests. */
	uint64_t name; /* Hash of the group; 0: free. */
	uint64_t used;
	uint32_t n, next;
	uint32_t sorted[QUOTE_LENGTHS], ring[QUOTE_LENGTHS];
};
#define QUOTE_BOOK_TAG 0x71b00c01U
struct quote_book {
	uint32_t tag;
	uint64_t turn;
	struct quote_model models[QUOTE_MODELS];
	struct quote_lengths *groups; /* QUOTE_GROUPS. */
};
/* Return the track of requests with the key's place and form, with |own| only of those of its kind; NULL: there is none. With |add|
 * one is made. */
struct quote_track *quote_track_of(struct quote_book *b, const struct quote_key *key, enum quote_figure f,
	bool own, bool add);
/* Return the lengths that are remembered of the group |name|, not 0; NULL: none. With |add| a place is made, which the one used
 * longest ago of some others gives. */
struct quote_lengths *quote_lengths_of(struct quote_book *b, uint64_t name, bool add);
