/* SPDX-License-Identifier: Apache-2.0 */
/* share: counts the requests that an agent relays, of all routers and of each, so that every router knows the
 * load of the others. The agent counts, because it sees each request once, and sees it before the router's
 * next choice depends on it. Pure; one thread.
 *
 * Memory: SHARE_ROUTERS rows. A router has a row while it has requests here. Routers beyond SHARE_ROUTERS at
 * once are counted in |all| alone and take their own requests for those of others. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHARE_ROUTERS 64

struct share_row {
	uint64_t router; /* 0: free. */
	uint32_t inflight;
	uint32_t asides;        /* Requests of inflight that compute no prompt. */
	uint32_t decoding;      /* The others of inflight that have a first byte. */
	uint64_t queued_tokens; /* Prompt tokens to compute of the requests without a first byte. */
	uint32_t wholes;        /* The requests without a first byte whose answer comes as a whole. */
	uint64_t
		whole_us; /* Sum of the times that prompts of whole answers are expected to take, also of ended ones; in |all| only. */
};

struct share {
	struct share_row all;
	struct share_row rows[SHARE_ROUTERS];
};

/* The counted part of one request, held by the request. All zero: nothing is counted. */
struct share_ticket {
	bool counted, begun, whole, aside;
	uint16_t row; /* SHARE_ROUTERS: no row. */
	uint32_t tokens;
};

/* Count a request of |router|; 0: of no router. */
void share_enter(struct share *s, uint64_t router, uint32_t tokens, struct share_ticket *t);
/* The answer of the counted request comes as a whole, and its prompt is expected to take |prompt_us|. */
void share_whole(struct share *s, struct share_ticket *t, uint32_t prompt_us);
/* The counted request computes no prompt and no answer, as one that asks for tokens: its first byte does not count. */
void share_aside(struct share *s, struct share_ticket *t);
/* Count the first byte of the request: its prompt is computed. Does nothing when it is not counted, is aside, or has
 * begun. */
void share_begun(struct share *s, struct share_ticket *t);
/* Uncount the request. Does nothing when it is not counted. */
void share_leave(struct share *s, struct share_ticket *t);
struct share_row share_of(const struct share *s, uint64_t router);

/* Estimates the requests in an engine that the agent did not relay, those of other clients. The engine is
 * polled now and then, and its answer is some time old, so the answer is compared with the peak of relayed
 * requests since the poll before the last. An excess counts only when two polls in a row show it, because an
 * engine may release a request a step after its last byte. */
struct share_peak {
	uint32_t now, before; /* Peak since the last poll, and of the interval before. */
	uint32_t beyond;      /* Excess at the last poll. */
};
void share_peak_note(struct share_peak *p, uint32_t inflight);
/* A poll begins: start a new interval with |inflight|. */
void share_peak_next(struct share_peak *p, uint32_t inflight);
/* The poll was answered with |in_engine| requests, once for each poll. Return the number of foreign ones. */
uint32_t share_foreign(struct share_peak *p, uint64_t in_engine);
