/* SPDX-License-Identifier: Apache-2.0 */
/* share: what an agent relays, in all and of each router, so that every router knows what the others have
 * there. Counted where it happens: the agent sees a request before the router's next one can be chosen by it,
 * and sees each of them once. Pure; one thread.
 *
 * Memory: SHARE_ROUTERS rows. A router has one while it has requests here; of more than that at once, those
 * beyond are in |all| alone, and their router takes its own requests for those of others. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHARE_ROUTERS 64

struct share_row {
	uint64_t router; /* 0: free */
	uint32_t inflight;
	uint32_t decoding;      /* of inflight: those that have a first byte */
	uint64_t queued_tokens; /* of the others' prompts, those to be computed */
};

struct share {
	struct share_row all;
	struct share_row rows[SHARE_ROUTERS];
};

/* What is counted of one request: its owner's, all zero when nothing is. */
struct share_ticket {
	bool counted, begun;
	uint16_t row; /* SHARE_ROUTERS: none */
	uint32_t tokens;
};

/* |router| 0: nobody's. */
void share_enter(struct share *s, uint64_t router, uint32_t tokens, struct share_ticket *t);
/* Its first byte came: its prompt is computed. Nothing when it is not counted, or has begun. */
void share_begun(struct share *s, struct share_ticket *t);
/* Nothing when it is not counted. */
void share_leave(struct share *s, struct share_ticket *t);
struct share_row share_of(const struct share *s, uint64_t router);

/* What an engine runs and queues that was not relayed: other clients' of it. The engine is asked now and
 * then, and says what was true some time ago, so it is compared with the most that was relayed at once since
 * the time before last that it was asked; and what is beyond that counts once it was there twice in a row,
 * because an engine that lets go of a request a step after its last byte has one too many for a moment. */
struct share_peak {
	uint32_t now, before; /* the most at once since it was asked last, and in the time before that */
	uint32_t beyond;      /* at the last asking */
};
void share_peak_note(struct share_peak *p, uint32_t inflight);
/* The engine is asked anew: a new time begins with what is relayed then. */
void share_peak_next(struct share_peak *p, uint32_t inflight);
/* It answered, once an asking: of what it says it has, what is nobody's. */
uint32_t share_foreign(struct share_peak *p, uint64_t in_engine);
