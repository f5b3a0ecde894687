/* SPDX-License-Identifier: Apache-2.0 */
/* breaker: may a node be sent requests, judged by how its last ones ended. Closed: yes. Open: no, for a while
 * that doubles each time it opens again soon after. Half-open: that while is over, and one request at a time
 * may find out; its success closes it.
 *
 * A breaker is one 64-bit word in the cell of its node, which all workers share. A step is a pure function of
 * word, event and time, and breaker_apply makes it with compare-and-swap: so a breaker opens for every worker
 * in the same instant and "one probe at a time" holds across all of them, without a lock, and without a post
 * to a loop that might be late. Zero is a closed breaker that knows nothing. What takes a look at many
 * requests at once (shares, peers: outlier.h) runs in the control loop and opens breakers by BREAKER_TRIP. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"

/* How a try on a node failed. */
enum breaker_failure {
#define FAILURE(id, text, counts, retriable, help) BREAKER_##id,
#include "policy/breaker/failures.def"
#undef FAILURE
	BREAKER_FAILURES
};
const char *breaker_failure_text(enum breaker_failure f); /* "connect" */
bool breaker_failure_counts(enum breaker_failure f);      /* against the node: load does not */
/* A word of router.retry.on: its bit; 0: there is no such word. */
unsigned breaker_failure_bit(const char *text);
void breaker_failure_words(struct cgn_buf *out); /* "connect, reset, ..." */

enum breaker_reason {
	BREAKER_FOR_NOTHING,
#define REASON(id, text, label) BREAKER_FOR_##id,
#include "policy/breaker/reasons.def"
#undef REASON
	BREAKER_REASONS
};
const char *breaker_reason_text(enum breaker_reason r);
const char *breaker_reason_label(enum breaker_reason r);

struct breaker_rules {
	uint32_t failures; /* in a row, that open it; 0: none do. At most 255 */
	cgn_nsec open_for; /* the first time; at least a millisecond */
};
#define BREAKER_OPEN_MAX (5 * 60 * CGN_SEC) /* doubling ends there, before jitter */
#define BREAKER_JITTER   0.25               /* of the time, at most, is added */
/* A probe of which nothing is heard for so long is given up, and another may be sent: a verdict that got
 * lost, as when the node changed its name meanwhile, must not keep it out for ever. */
#define BREAKER_PROBE_MAX BREAKER_OPEN_MAX

enum breaker_event {
	BREAKER_OK,        /* a request there ended well */
	BREAKER_FAILED,    /* one failed in a way that counts */
	BREAKER_CLAIM,     /* one is about to be sent as the probe */
	BREAKER_PROBE_OK,  /* the probe, or one that was sent though it is open, got its first byte */
	BREAKER_PROBE_BAD, /* the probe failed */
	/* the probe ended without a verdict: its client went, or the node had too much to do */
	BREAKER_PROBE_LEFT,
	BREAKER_TRIP, /* open at once */
	BREAKER_HINT, /* its agent says that it is ready anew: no need to wait */
};

struct breaker_input {
	enum breaker_event event;
	enum breaker_reason reason; /* of BREAKER_TRIP */
	cgn_nsec now;
	double jitter; /* random, from 0 to 1 */
};
/* What the word becomes. Events that do not fit leave it as it is: a CLAIM that changed nothing was too
 * late. */
uint64_t breaker_step(uint64_t word, const struct breaker_rules *rules, const struct breaker_input *in);

typedef _Atomic uint64_t breaker_word;
struct breaker_change {
	uint64_t was, is;
};
/* Any thread. The step that was made, was == is when none was. */
struct breaker_change breaker_apply(breaker_word *w, const struct breaker_rules *rules,
	const struct breaker_input *in);

enum breaker_state { BREAKER_CLOSED, BREAKER_HALF_OPEN, BREAKER_OPEN };
enum breaker_state breaker_state(uint64_t word, cgn_nsec now);
const char *breaker_state_text(enum breaker_state s); /* "half-open" */
enum breaker_reason breaker_why(uint64_t word);       /* it opened last; BREAKER_FOR_NOTHING when closed */
bool breaker_opened(const struct breaker_change *c);  /* it is open and was not, or is open anew */
bool breaker_closed(const struct breaker_change *c);  /* it is closed and was not */
/* "closed", "open: 5 failures, 8 s left", "half-open: waits for a request", "half-open: a request is trying
 * it" */
void breaker_text(uint64_t word, cgn_nsec now, struct cgn_buf *out);
cgn_nsec breaker_left(uint64_t word, cgn_nsec now); /* until it is half-open; 0: it is not open */

/* What a request may do there. */
enum breaker_gate {
	BREAKER_PASS,  /* closed */
	BREAKER_PROBE, /* half-open, and no probe is out: BREAKER_CLAIM first */
	BREAKER_SHUT,  /* open, or a probe is out */
};
enum breaker_gate breaker_gate(uint64_t word, cgn_nsec now);
/* Of shut ones, the least bad has the least: what is said to be silent is worst, then what opened again most
 * often. */
unsigned breaker_badness(uint64_t word);
