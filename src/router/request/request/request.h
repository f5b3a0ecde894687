/* SPDX-License-Identifier: Apache-2.0 */
/* request: one request of a client on its worker's loop, and the machine that drives it from state to state
 * (gw_states.def). Read this header first: each part of a request has a header of its own. */
#pragma once
#include "base/core/arena.h"
#include "router/request/attempt/attempt.h"
#include "router/request/request/answer.h"
#include "router/request/request/client.h"
#include "router/request/request/hook.h"
#include "router/request/request/plan.h"
#include "router/request/request/prompt.h"

enum gw_state {
#define STATE(id, handler, exits, why) GW_##id,
#include "router/request/request/gw_states.def"
#undef STATE
	GW_STATE_COUNT
};

enum gw_step {
	STEP_AGAIN, /* run the state that the request is in now */
	STEP_PARK,  /* wait for an event */
	STEP_END    /* the request is gone */
};
enum gw_wait {
	WAIT_NONE,
	WAIT_PROVIDER, /* the identity provider is asked for its keys */
	WAIT_BODY,
	WAIT_POOL,
	WAIT_TOKENS,
	WAIT_STORE,
	WAIT_HOOK,
	WAIT_QUEUE,
	WAIT_BACKOFF,
	WAIT_ENGINE,
	WAIT_CLIENT
};

struct gw_underway;  /* account/underway.c */
struct gw_filing;    /* files/ */
struct gw_selecting; /* selection/ */
struct gw_req;
struct gw_state_row {
	enum gw_step (*run)(struct gw_req *r);
	unsigned exits; /* bits of enum gw_state */
};

/* The time that a request spent in each state, by the loop's clock. */
struct gw_times {
	cgn_nsec since; /* when it came into the state that it is in */
	uint32_t us[GW_STATE_COUNT];
};

/* Work on the request's body: see gw_body_work. */
struct gw_body_job {
	void (*run)(struct gw_req *r), (*then)(struct gw_req *r);
	bool busy;                          /* the pool runs it */
	void (*orphaned)(struct gw_req *r); /* called instead of |then|: the request has ended meanwhile */
};

#define GW_REQ_TAG 0x64e40e01U
struct gw_req {
	uint32_t tag;
	enum gw_state state;
	enum gw_wait armed;
	bool waking;                        /* a handler runs; events meanwhile are seen when it returns */
	bool event;                         /* something happened since the handler began */
	const struct gw_state_row *machine; /* GW_STATE_COUNT rows */
	struct gw_worker *w;
	struct cgn_arena arena;   /* lives as long as the request */
	struct cgn_arena scratch; /* the chain; dropped at the first byte */
	struct cgn_arena head;    /* the head of the current leg's answer; dropped at the first byte */
	struct cgn_grave grave;
	struct cgn_timer timer;     /* backoff, first byte, or silence of the engine */
	struct cgn_timer keepalive; /* answer/keepalive.h */
	struct gw_client client;
	struct gw_identity identity;
	struct gw_body body;
	struct gw_times times;
	struct gw_body_job body_job;
	struct gw_prompt prompt;
	struct gw_plan plan;
	struct gw_attempt attempt; /* attempt of the current leg, or of the last one */
	struct gw_attempt
		beside; /* attempt of the prefill leg that runs beside the current leg; plan/handoff.c */
	struct gw_answer answer;
	struct gw_filing *filing;       /* a request of files or batches; NULL: another one */
	struct gw_selecting *selecting; /* a request for a selection, in |arena|; NULL: another one */
	struct gw_underway
		*underway;       /* account/underway.c; NULL: no engine was asked, or nothing is counted */
	struct gw_hooking *hook; /* hooks/; NULL: no external check was asked, and no answer is held back */
};

/* Set the first state and the timer; gw_wake starts the machine. */
void gw_req_start(struct gw_req *r, const struct gw_state_row *machine);
/* Run the state's handler because something has happened, and go on until the request waits again. Every
 * callback ends with gw_wake. Afterwards |r| may be gone: its memory then stays until the turn ends, with
 * another tag. */
void gw_wake(struct gw_req *r);
void gw_goto(struct gw_req *r, enum gw_state next);
/* Wait for |what|, and for |delay| if that is not 0. */
enum gw_step gw_park(struct gw_req *r, enum gw_wait what, cgn_nsec delay);

/* A body up to this many bytes is worked on in the worker's turn: a few milliseconds at most, even when it is made of
 * the smallest members. */
#define GW_INLINE_BODY ((size_t)256 * 1024)
/* In GW_ROUTE: do |run|, then |then| in GW_ROUTE. For a larger body |run| is done by the thread pool, so that the
 * worker serves others meanwhile: the request is then in GW_READ on return, and gw_body_work is called last. |run| may
 * touch the body, r->scratch and what belongs to |run| alone; nothing else touches them until |then|. Both are called at
 * once when the pool has no memory for a job. */
void gw_body_work(struct gw_req *r, void (*run)(struct gw_req *r), void (*then)(struct gw_req *r));
/* As gw_body_work for a larger body. */
void gw_body_pool(struct gw_req *r, void (*run)(struct gw_req *r), void (*then)(struct gw_req *r));
/* The state GW_READ. */
enum gw_step gw_read(struct gw_req *r);

/* In GW_ROUTE: decode a body that has a Content-Encoding, and drop a byte order mark before JSON. True: the body is
 * plain. False: it is refused, or the thread pool decodes it, and |then| is called in GW_ROUTE. Decoding stops at
 * router.max_body, whatever the ratio. A body that is small, coded and decoded, is decoded in the worker's turn. */
bool gw_body_decode(struct gw_req *r, void (*then)(struct gw_req *r));
/* Forget a decoding. Nothing may run it. Safe for every request. */
void gw_body_decode_drop(struct gw_req *r);

/* Bounds of a text that grows in memory; for threads other than the worker's too. */
struct gw_body_bound {
	_Atomic uint64_t *used; /* bytes of all bodies */
	uint64_t max_body, max_inflight;
};
struct gw_body_bound gw_body_bound(const struct gw_req *r);
/* Append to |to|, of which |*booked| bytes are booked in |b->used|. TOO_LARGE, OVERLOADED, NO_MEMORY. */
enum cgn_code gw_body_append(const struct gw_body_bound *b, struct cgn_buf *to, uint64_t *booked,
	struct cgn_str bytes);
/* Give back the room into which |to| would have grown. */
void gw_body_fit(const struct gw_body_bound *b, struct cgn_buf *to, uint64_t *booked);

/* Free the body's memory and its share of router.max_inflight_body. */
void gw_body_drop(struct gw_req *r);
/* Make |own|, which is taken, the request's body. */
void gw_body_replace(struct gw_req *r, struct cgn_buf *own);

/* Answer with an error: record it and go to GW_ANSWER, which sends it. No byte may have been sent to the
 * client. |reason| of |how| counts the refusal. */
enum gw_step gw_refuse(struct gw_req *r, const struct gw_refusal *how, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
enum gw_step gw_refuse_no_memory(struct gw_req *r, const char *reason);
/* Refuse a body that is larger than router.max_body (CGN_TOO_LARGE), or that has no room in router.max_inflight_body
 * (any other code). */
enum gw_step gw_refuse_body(struct gw_req *r, enum cgn_code code);
/* Append the event that tells the client of the error |how| at the end of a stream, in the shape of its API. |shown|: what the
 * client has of the stream; NULL: all whole
 * events that came. */
void gw_refusal_event(struct gw_req *r, const struct gw_refusal *how, const char *message,
	const struct cgn_str *shown, struct cgn_buf *out);
