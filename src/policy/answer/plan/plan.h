/* SPDX-License-Identifier: Apache-2.0 */
/* plan: the upstream calls ("legs") that make one answer, and what follows the end of each. Pure; one thread.
 *
 * A plan begins with one leg that computes the whole answer. Four things add legs:
 * - a cascade puts legs of smaller models before the leg of the model that was asked for. The answer of each is held
 *   back until it is judged: it is shown and is the answer, or it leads on to the next model's leg;
 * - disaggregation puts a prefill leg before the answer leg; the answer leg then fetches what the prefill leg
 *   stored, or computes everything if the prefill leg failed;
 * - a retry is one more leg like the one that failed before its first byte, on a node that was not tried;
 * - a resume is one more leg whose body continues an answer that broke off.
 * The shell (router/answer/plan) chooses a node for the current leg, calls it, and reports how the leg ended;
 * plan_follow says what comes next.
 *
 * A leg has a stage: legs of one stage are alternatives or may run at the same time, and a stage begins when
 * the one before it has ended. Today one leg runs at a time, and the legs of a stage are its retries. */
#pragma once
#include "base/core/str.h"
#include "policy/node/breaker/breaker.h"

#define PLAN_MAX_ATTEMPTS 16 /* answer legs; the most that router.retry.attempts may be */
#define PLAN_PREFILLS     3  /* prefill legs, at most */
#define PLAN_TRIALS       3  /* legs of smaller models, at most */
/* room for a plan with at most |attempts| answer legs */
#define PLAN_LEGS(attempts) ((attempts) + PLAN_PREFILLS + PLAN_TRIALS)
#define PLAN_NO_SLOT        UINT16_MAX /* no node's slot */
#define PLAN_DEATHS         2 /* engines that may hang up on one request; it is sent to no further one */

enum leg_role {
	LEG_WHOLE,   /* computes the prompt and the answer */
	LEG_PREFILL, /* computes the prompt and stores it for the decode leg */
	LEG_DECODE,  /* fetches the blocks of the prefill leg, and answers */
};
enum leg_edit {
	LEG_AS_SENT,   /* the client's body, unchanged */
	LEG_CONTINUES, /* the client's body with the part of the answer that was shown behind it */
};
enum leg_bytes {
	LEG_SHOW, /* to the client, from the first byte on */
	LEG_DROP,
	LEG_HOLD, /* kept until plan_release, after which they are shown, or until the leg ends */
};

/* Meaning of a good end. */
enum leg_then {
	LEG_ENDS_ANSWER,
	LEG_LEADS_ON, /* to the answer leg, or to the next model's; so does a failure */
};

/* Constraint on the node, besides the demand of the role. */
struct leg_target {
	bool untried;   /* not the nodes of the plan's earlier answer legs */
	bool resuming;  /* only nodes that can continue an answer */
	bool continues; /* only prefill nodes: decode nodes are scarce. Not for the legs that follow */
};

enum leg_state { LEG_PLANNED, LEG_SENT, LEG_SUCCEEDED, LEG_FAILED };

struct plan_leg {
	enum leg_role role;
	enum leg_edit edit;
	enum leg_bytes bytes;
	enum leg_then then;
	struct leg_target target;
	unsigned stage, step; /* |step|: place of |model| in the plan's cascade */
	struct cgn_str model; /* borrowed */
	/* once sent */
	enum leg_state state;
	uint16_t slot;    /* PLAN_NO_SLOT when the node may be tried again */
	const char *node; /* id, borrowed; set by the shell */
	cgn_nsec sent_at, took;
	/* usage of the leg as the router predicted it: blocks of the prompt that the node held, of all */
	uint32_t held, blocks;
};

struct plan {
	struct plan_leg *legs; /* borrowed */
	unsigned cap;
	unsigned n;                   /* legs so far; the last one is the current one */
	bool staged;                  /* whether a prefill leg goes first is decided */
	const struct cgn_str *models; /* the models of a cascade, borrowed; NULL: there is none */
	unsigned n_models;
	uint32_t resumes;       /* times that the answer was resumed, or completed without an engine */
	const char *last_retry; /* reason of the last retry; NULL: none */
	unsigned deaths;        /* engines that took the request and hung up before they answered */
};

/* ---- building ---- */

/* Begin |p| with one leg that computes the whole answer. |legs| has room for |cap| = PLAN_LEGS(attempts) legs; it
 * and |model| are borrowed for the plan's life. */
void plan_begin(struct plan *p, struct plan_leg *legs, unsigned cap, struct cgn_str model);
/* Return the leg that computes the prompt for the current leg, which must not have been sent. */
struct plan_leg plan_prefill_leg(const struct plan *p);
/* Ask |models[0]| first, whose answer is held back, and so on; the answer of the last one is shown. The current leg must
 * not have been sent. |models|: 2 to PLAN_TRIALS + 1, borrowed for the plan's life. */
void plan_cascade(struct plan *p, const struct cgn_str *models, unsigned n);
/* Put |leg|, a result of plan_prefill_leg, before the current leg. */
void plan_prefill_first(struct plan *p, const struct plan_leg *leg);

/* ---- the current leg ---- */

struct plan_leg *plan_leg(struct plan *p);
/* Let a prefill node take the current leg, which computes the whole answer and must not have been sent. */
void plan_let_prefill_answer(struct plan *p);
/* The current leg is sent to the node in |slot|, which is predicted to hold |held| of the prompt's |blocks|. */
void plan_sent(struct plan *p, uint16_t slot, uint32_t held, uint32_t blocks, cgn_nsec now);
/* The current leg, which was sent, ended before its first byte outside of the cluster: it does not count, and can be sent
 * again. */
void plan_withdraw(struct plan *p);
/* The current leg, of a smaller model, cannot be sent: the next model's takes its place. */
void plan_skip(struct plan *p);
/* The current leg, whose bytes are held, is the answer: it is shown from now on. */
void plan_release(struct plan *p);
/* An engine took the request and hung up before it answered: the request may have killed it. */
void plan_died(struct plan *p);
/* The current leg has ended. */
void plan_ended(struct plan *p, bool well, cgn_nsec now);

/* How a leg ended, or what it answered with. */
enum leg_end {
	LEG_END_FINE,   /* in good order */
	LEG_END_FAILED, /* before its first byte */
	LEG_END_STATUS, /* not yet: the engine answers with an error that is about the node, not the request */
	LEG_END_MISFIT,   /* not yet: the engine answers, but not with what continues the answer */
	LEG_END_CUT,      /* after its first byte */
	LEG_END_REJECTED, /* the answer, which was held back, is not good enough */
};
/* After a cut: the missing part of a complete answer. */
enum plan_missing {
	PLAN_MISSES_MORE,    /* text that another engine can continue with */
	PLAN_MISSES_NOTHING, /* nothing that an engine has to compute */
	PLAN_MISSES_LOST,    /* text that no engine can continue with */
};
struct leg_outcome {
	enum leg_end end;
	enum breaker_failure how; /* kind of failure; BREAKER_FAILURES: the request is at fault */
	enum plan_missing missing;
};

struct plan_rules {
	unsigned retry_on; /* bits of enum breaker_failure */
	uint32_t attempts; /* answer legs, at most */
};

enum plan_next {
	PLAN_LEG,   /* send |leg| */
	PLAN_RELAY, /* relay the answer of the current leg, though it is an error */
	PLAN_OVER,  /* the answer is complete */
	/* there is no answer: refuse the request, or cut the answer that the client has begun to get */
	PLAN_FAIL,
};
struct plan_step {
	enum plan_next next;
	/* The leg costs a retry and needs another node. Without both, do |otherwise|. */
	bool costs_retry;
	enum plan_next otherwise;
	const char *reason; /* label of cgn_retries_total; NULL: the leg does not count as a retry */
	struct plan_leg leg;
};

/* Say in |out| what follows |o| of the current leg. Changes nothing. */
void plan_follow(const struct plan *p, const struct plan_rules *rules, const struct leg_outcome *o,
	struct plan_step *out);
/* Append the leg of |step|, which is a PLAN_LEG, as the current one. The leg before it has ended. */
void plan_take(struct plan *p, const struct plan_step *step);

/* ---- queries ---- */

/* Is the answer of the current leg held back? */
bool plan_is_held(const struct plan *p);
/* The last leg that was sent. Before any was sent: a leg of zeros. */
const struct plan_leg *plan_last(const struct plan *p);
/* Answer legs that were sent. */
uint32_t plan_attempts(const struct plan *p);
/* Slots of the nodes that answer legs were sent to; returns how many. |out|: PLAN_MAX_ATTEMPTS. */
size_t plan_tried(const struct plan *p, uint16_t *out);
bool plan_has_tried(const struct plan *p, uint16_t slot);
/* Let the nodes of failed legs be tried again. */
void plan_forgive(struct plan *p);
/* The prefill leg that succeeded; NULL: none did. */
const struct plan_leg *plan_prefilled(const struct plan *p);
