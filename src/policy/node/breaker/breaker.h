/* SPDX-License-Identifier: Apache-2.0 */
/* breaker: the circuit breaker of a node, judged by how its last requests ended. Closed: the node gets requests.
 * Open: it gets none, for a time that doubles each time the breaker opens again soon after. Half-open: that time
 * is over, and one request at a time is sent as a probe; a probe that succeeds closes the breaker.
 *
 * A breaker is one 64-bit word in its node's node_stats, which all workers share. A step is a pure function of
 * word, event and time; breaker_apply makes it with compare-and-swap. So a breaker opens for every worker in the
 * same instant, and "one probe at a time" holds across workers, without a lock and without a post to another
 * loop. Zero is a closed breaker without history. Judgements over many requests (shares, peers: outlier.h) run
 * in the control loop, which opens breakers with BREAKER_TRIP. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"

struct config;

/* The way in which an attempt at a node failed. */
enum breaker_failure {
#define FAILURE(id, text, counts, retriable, begun, help) BREAKER_##id,
#include "policy/node/breaker/failures.def"
#undef FAILURE
	BREAKER_FAILURES
};
const char *breaker_failure_text(enum breaker_failure f); /* "connect" */
/* Whether the failure counts against the node; overload does not. */
bool breaker_failure_counts(enum breaker_failure f);
/* Whether the engine may have begun to work on a request that failed so. */
bool breaker_failure_begun(enum breaker_failure f);
/* Return the bit of a word of router.retry.on; 0: unknown word. */
unsigned breaker_failure_bit(const char *text);
void breaker_failure_words(struct cgn_buf *out); /* "connect, reset, ..." */

enum breaker_reason {
	BREAKER_FOR_NOTHING,
#define REASON(id, text, label) BREAKER_FOR_##id,
#include "policy/node/breaker/reasons.def"
#undef REASON
	BREAKER_REASONS
};
const char *breaker_reason_text(enum breaker_reason r);
const char *breaker_reason_label(enum breaker_reason r);

struct breaker_rules {
	/* Consecutive failures that open the breaker, at most 255; 0: failures in a row never open it. */
	uint32_t failures;
	cgn_nsec open_for; /* Duration of the first opening, at least a millisecond. */
};
#define BREAKER_OPEN_MAX (5 * 60 * CGN_SEC) /* Longest opening, before jitter. */
#define BREAKER_JITTER   0.25               /* Largest jitter, as a share of the duration. */
/* A probe without a verdict for this long is given up, and another may be sent: a lost verdict (the node changed
 * its id meanwhile) must not keep the node out without end. */
#define BREAKER_PROBE_MAX BREAKER_OPEN_MAX

enum breaker_event {
	BREAKER_OK,     /* a request at the node succeeded */
	BREAKER_FAILED, /* a request failed in a way that counts */
	BREAKER_CLAIM,  /* a request is about to be sent as the probe */
	/* The probe got its first byte. Also a request that was sent although the breaker was open. */
	BREAKER_PROBE_OK,
	BREAKER_PROBE_BAD, /* the probe failed */
	/* the probe ended without a verdict: the client closed, or the node was overloaded */
	BREAKER_PROBE_LEFT,
	BREAKER_TRIP, /* Open at once. */
	BREAKER_HINT, /* The agent reports that the node is ready again: allow a probe now. */
};

struct breaker_input {
	enum breaker_event event;
	enum breaker_reason reason; /* For BREAKER_TRIP. */
	cgn_nsec now;
	double jitter; /* Random, from 0 to 1. */
};
/* Return the next word. An event that does not fit the state leaves the word unchanged: a CLAIM that changed
 * nothing came too late. */
uint64_t breaker_step(uint64_t word, const struct breaker_rules *rules, const struct breaker_input *in);

typedef _Atomic uint64_t breaker_word;
struct breaker_change {
	uint64_t was, is;
};
/* Make the step on |w|. Any thread. Returns the words before and after; equal if nothing changed. */
struct breaker_change breaker_apply(breaker_word *w, const struct breaker_rules *rules,
	const struct breaker_input *in);

enum breaker_state { BREAKER_CLOSED, BREAKER_HALF_OPEN, BREAKER_OPEN };
enum breaker_state breaker_state(uint64_t word, cgn_nsec now);
const char *breaker_state_text(enum breaker_state s); /* "half-open" */
enum breaker_reason breaker_why(uint64_t word); /* reason of the last opening; BREAKER_FOR_NOTHING: closed */
bool breaker_opened(const struct breaker_change *c); /* the breaker opened, or opened again */
bool breaker_closed(const struct breaker_change *c); /* the breaker closed */
/* Write "closed", "open: 5 failures, 8 s left", "half-open: waits for a request", "half-open: a request is trying
 * it" */
void breaker_text(uint64_t word, cgn_nsec now, struct cgn_buf *out);
cgn_nsec breaker_left(uint64_t word, cgn_nsec now); /* Time until half-open; 0: the breaker is not open. */

/* Whether a request may be sent to the node. */
enum breaker_gate {
	BREAKER_PASS,  /* closed */
	BREAKER_PROBE, /* Half-open, and no probe is out: apply BREAKER_CLAIM before the request is sent. */
	BREAKER_SHUT,  /* Open, or a probe is out. The node is used only if no other node is left. */
};
enum breaker_gate breaker_gate(uint64_t word, cgn_nsec now);
/* Return a rank among breakers that are shut; lower is better. Silent nodes rank worst, then nodes whose
 * breaker opened again most often. */
unsigned breaker_badness(uint64_t word);

/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC breaker_check_config(const struct config *c, struct cgn_err *err);
