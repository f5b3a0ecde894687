/* SPDX-License-Identifier: Apache-2.0 */
/* quote: the forecast of a request (time to first byte, time to the end, cost, joules), with intervals that
 * hold as often as they say. Pure.
 *
 * A quote begins with a guess: each figure is a line over the tokens of the answer, |base| + |per_token| * tokens,
 * from the predictions that routing, admission, energy and prices make. The tokens are the quantiles of the lengths
 * of recent answers of the same session, or else the same family of prompts, holder, or model, cut at the request's limit.
 * Requests with a limit and requests without one are told apart throughout: the former's lengths are known.
 *
 * The intervals are conformal (conformalized quantile regression with ratios, Romano et al. 2019): of recent
 * requests of the same model, place and form, the ratio of the actual value to each end of the guess is kept,
 * and the ends are multiplied by quantiles of these ratios. How far out the quantile lies is learned too
 * (adaptive conformal inference, Gibbs and Candes 2021): an end that was missed moves out at once, an end
 * that holds moves in slowly, so that the share of misses tends to the wanted one even while nodes become
 * slower or loads change. With less than QUOTE_LEAST samples the ends are at least QUOTE_WIDE times away from
 * the guess.
 *
 * One thread. Memory: at most QUOTE_MODELS models of 24 KiB for each place and form that occurs, 490 KiB with all of them, and
 * 8.4 MiB of answer lengths; the model, and the group of requests, that was used longest ago gives way. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define QUOTE_MODELS  128
#define QUOTE_WINDOW  256 /* Samples of a figure, and its ratios. */
#define QUOTE_LEAST   20  /* Fewer say nothing about the 5 % at each end. */
#define QUOTE_WIDE    8.0
#define QUOTE_LENGTHS 64    /* Answers of a group of requests that are remembered. */
#define QUOTE_GROUPS  16384 /* Sessions, families of prompts, holders and models. */

enum quote_figure {
#define FIGURE(id, label, member, scale, floor, back) QUOTE_##id,
#include "policy/route/quote/figures.def"
#undef FIGURE
	QUOTE_FIGURES
};
const char *quote_figure_label(enum quote_figure f);  /* The label of metrics. */
const char *quote_figure_member(enum quote_figure f); /* The member of JSON. */
double quote_figure_scale(enum quote_figure f);       /* Factor in JSON. */

/* Requests of different places and forms have errors of their own. */
enum quote_place {
	QUOTE_READY,  /* A node has room. */
	QUOTE_QUEUED, /* The request has to wait for room first. */
	QUOTE_PLACES
};
struct quote_key {
	uint64_t model;   /* Hash of the model's name; not 0. */
	uint64_t holder;  /* Hash of who asks: the key, or the tenant; not 0. */
	uint64_t session; /* 0: none. */
	uint64_t family;  /* Digest of the prompt's first block, which prompts of one kind share; 0: none. */
	enum quote_place place;
	bool whole;   /* The answer comes in one piece. */
	bool limited; /* The request has a limit of the answer's tokens. */
	bool narrow;  /* Set by quote_make: lengths of the session, or of the family, are known. */
};

struct quote_line {
	bool known;
	double base, per_token;
};
struct quote_range {
	double low, expected, high;
};
/* The guess: see above. */
struct quote_guess {
	struct quote_line v[QUOTE_FIGURES];
	uint32_t answer_limit; /* Most tokens of the answer; 0: unlimited. */
	bool answers;          /* False: the request has no answer of tokens, such as embeddings. */
};

struct quote {
	struct quote_key key;
	struct quote_range answer; /* Tokens. */
	bool known[QUOTE_FIGURES];
	struct quote_range guess[QUOTE_FIGURES]; /* Before the intervals; for quote_learn. */
	struct quote_range v[QUOTE_FIGURES];
	uint32_t samples[QUOTE_FIGURES]; /* Requests that the interval comes from, at most QUOTE_WINDOW. */
};

struct quote_book;
struct quote_book *quote_book_new(void);
void quote_book_free(struct quote_book **take);

/* Make a quote whose intervals are to hold for the share |coverage| of requests, 0.5 to 0.99. */
void quote_make(struct quote_book *b, const struct quote_key *key, const struct quote_guess *g,
	double coverage, struct quote *out);

/* Return the milliseconds within which the first byte comes for the share |confidence| of requests like that of |q|; the
 * guess with less than QUOTE_LEAST samples. */
double quote_first_ms(struct quote_book *b, const struct quote *q, double confidence);

enum quote_side { QUOTE_INSIDE, QUOTE_BELOW, QUOTE_ABOVE };
/* The figure |f| of |q|, made for |coverage|, turned out to be |actual|: learn from it, and return on which side of the
 * interval it is. |f| has to be known. */
enum quote_side quote_learn(struct quote_book *b, const struct quote *q, enum quote_figure f, double actual,
	double coverage);
/* An answer to the holder of |key| had |tokens| tokens. */
void quote_answer_learn(struct quote_book *b, const struct quote_key *key, uint64_t tokens);
