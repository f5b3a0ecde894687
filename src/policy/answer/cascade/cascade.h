/* SPDX-License-Identifier: Apache-2.0 */
/* cascade: a small model answers first; the log-probabilities of its first tokens decide whether its answer is shown, or
 * dropped and a larger model asked. Pure; one thread, unless a function says otherwise.
 *
 * The shapes of log-probabilities are those of vLLM 0.26, SGLang 0.5, llama.cpp 0.7.0 and cgn-sim: a choice has
 * "logprobs": {"content": [{"token", "logprob", "top_logprobs": [{"token", "logprob"}]}]}, or, for text completions,
 * "logprobs": {"token_logprobs": [], "tokens": [], "top_logprobs": [{TOKEN: LOGPROB}]}. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/json/json.h"
#include "base/sse/sse.h"
#include "policy/answer/cascade/calibration.h"
#include "policy/text/prompt/prompt.h"

struct config;

#define CASCADE_MODELS     4  /* models of a chain, with the one that was asked for, at most */
#define CASCADE_TOKENS_MAX 32 /* tokens that the gate reads, at most */
#define CASCADE_TOP        5  /* alternatives that are asked for each token; some engines give no more */

/* ---- body.c: the request for a small model ---- */

/* Why a request is not gated: labels. */
#define CASCADE_PASSES_ROUTE   "route"   /* no chat and no text completion */
#define CASCADE_PASSES_SEVERAL "several" /* several answers or prompts */
#define CASCADE_PASSES_STRUCTURED \
	"structured" /* a grammar renormalises log-probabilities; forced tool calls too */
#define CASCADE_PASSES_LOGPROBS \
	"logprobs" /* the client asks for too few alternatives, or for those of the prompt */

/* Return why the answer to |body|, an object that json_parse accepted, can't be gated; NULL: it can. |several|: of
 * body_facts. |*own| is set if the client asks for the log-probabilities that the gate needs itself. */
const char *cascade_passes(enum prompt_api api, struct json_val body, bool several, bool *own);
/* Append |text|, whose object is |body|, so that the engine gives log-probabilities. All bytes of the client keep their
 * places, but for values of members that ask for none. Failures are |out|'s. */
void cascade_body(enum prompt_api api, struct cgn_str text, struct json_val body, struct cgn_buf *out);

/* ---- answer.c: a small model's answer ---- */

struct cascade_answer {
	unsigned most; /* tokens that are read */
	/* tokens read; tokens of the answer seen, with those that are not read: of reasoning, and without a letter or digit */
	unsigned n, seen;
	double logprob, margin, entropy; /* sums over the tokens read */
	bool thinking;                   /* inside of <think> */
	bool ended;                      /* a choice has a finish_reason, or the stream its [DONE] */
	bool broken;                     /* the engine sent an error, or ended the answer as failed */
	struct sse_scan scan;
};
/* |most|: 1 to CASCADE_TOKENS_MAX. */
void cascade_answer_init(struct cascade_answer *a, unsigned most);
void cascade_answer_fini(struct cascade_answer *a);
/* Read the next bytes of an event stream, cut anywhere. */
void cascade_answer_feed(struct cascade_answer *a, struct cgn_str data);
/* No further bytes come: read an event whose empty line is missing. */
void cascade_answer_end(struct cascade_answer *a);
/* Read a whole answer that is one document. */
void cascade_answer_document(struct cascade_answer *a, struct cgn_str text);
/* The mean log-probability of the tokens read; 0 without any. */
double cascade_confidence(const struct cascade_answer *a);
/* How unsure the tokens read are, from 0 to 1: the mean of half the entropy of the alternatives, as a share of the most
 * that it can be, and half of what the first alternative's probability lacks to be 1 more than the second's. */
double cascade_doubt(const struct cascade_answer *a);

/* ---- gate.c ---- */

enum cascade_verdict { CASCADE_WAIT, CASCADE_RELEASE, CASCADE_ESCALATE };
struct cascade_gate {
	double threshold; /* least mean log-probability; counts where nothing is learned */
	const struct calibration_curve
		*curve;   /* decides; without steps nothing passes. NULL: nothing is learned */
	double max_error; /* calibration_passes */
};
/* Decide on |a|, of which no more will come if |whole|. */
enum cascade_verdict cascade_judge(const struct cascade_gate *g, const struct cascade_answer *a, bool whole);

/* ---- pregate.c: where a small model's answer hardly ever passes ---- */

#define CASCADE_CELLS 4096 /* A power of two; 32 KiB. Groups that share a cell share their rates. */
#define CASCADE_GROUP \
	5 /* Groups of a request: all of the pair, and those of its key, route, prefix and length. */
/* Properties that a request shares with others: hashes, and the tokens of the prompt. */
struct cascade_request {
	uint64_t pair, key, route, prefix, tokens;
};
struct cascade_group {
	uint16_t cells[CASCADE_GROUP];
};
struct cascade_cell {
	float asked, escalated; /* answers of late */
};
struct cascade_rates {
	struct cascade_cell cells[CASCADE_CELLS];
};
void cascade_group_of(const struct cascade_request *q, struct cascade_group *out);
/* Return true if the larger model is to be asked at once: the share of the group's answers that did not pass is above
 * |limit|. |random|, from 0 to 1, lets a few requests through, so that a change is noticed. */
bool cascade_is_hopeless(const struct cascade_rates *r, const struct cascade_group *g, double limit,
	double random);
/* An answer of the group was judged. */
void cascade_learn(struct cascade_rates *r, const struct cascade_group *g, bool escalated);

/* ---- rates.c: the rates as lines of a file ---- */

/* Append "cell NUMBER ASKED ESCALATED", in thousandths, for each cell that has answers. */
void cascade_rates_put(const struct cascade_rates *r, struct cgn_buf *out);
/* Take all |lines|. A cell counts as 40 answers at most, so that it follows soon if models or settings are other ones now. INVALID:
 * |*out| is not to be used; the sentence names the line. */
CGN_RC cascade_rates_take(struct cgn_str lines, struct cascade_rates *out, struct cgn_err *err);

/* ---- strip.c: log-probabilities that only the gate asked for ---- */

#define CASCADE_KEY_MAX  96
#define CASCADE_NAME_MAX 9 /* longer than no key that matters */
/* How an engine writes a choice of a request that asks for no log-probabilities. */
enum cascade_blank {
	CASCADE_BLANK_NULL, /* "logprobs": null */
	CASCADE_BLANK_GONE, /* without the member, as llama.cpp */
};
struct cascade_strip {
	enum cascade_blank blank;
	bool events; /* each line may hold a document */
	uint8_t at, skip;
	bool is_key, in_choices,
		is_choices;  /* the next string is a key; inside of "choices"; its value comes */
	bool holding, found; /* bytes before a value are kept; it is the one to leave out */
	bool drop_comma;
	uint32_t depth;
	uint8_t name_n; /* bytes of the key that is read */
	char name[CASCADE_NAME_MAX];
	uint32_t held_n;
	char held[CASCADE_KEY_MAX];
};
void cascade_strip_init(struct cascade_strip *s, enum cascade_blank blank, bool events);
/* Append to |out| what the client gets for |data|, cut anywhere: all of it, without the log-probabilities of choices.
 * Bytes that may belong to one are kept, at most CASCADE_KEY_MAX. Failures are |out|'s. */
void cascade_strip_feed(struct cascade_strip *s, struct cgn_str data, struct cgn_buf *out);
/* The answer has ended, perhaps too early: append the bytes that are kept. */
void cascade_strip_end(struct cascade_strip *s, struct cgn_buf *out);

/* Append a sentence that says what calibration costs, or what goes without it. Nothing where cascades are off. */
void cascade_cost_put(const struct config *c, struct cgn_buf *out);
/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC cascade_check_config(const struct config *c, struct cgn_err *err);
