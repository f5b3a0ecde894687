/* SPDX-License-Identifier: Apache-2.0 */
/* loop: one event loop on one thread. Timers, posts from other threads, work after the turn, the clock.
 * Everything here but cgn_loop_post and cgn_loop_stop is called on the loop's own thread. */
#pragma once
#include <stdbool.h>

#include "base/core/err.h"
#include "base/core/list.h"
#include "base/core/str.h"

struct cgn_loop;
struct uv_loop_s;

CGN_RC cgn_loop_new(struct cgn_loop **out, struct cgn_err *err);
void cgn_loop_free(struct cgn_loop **take); /* after cgn_loop_run returned; every handle must be closed */
void cgn_loop_run(struct cgn_loop *l);      /* until cgn_loop_stop, then drains closing handles */
void cgn_loop_stop(struct cgn_loop *l);     /* any thread, idempotent */
/* Before it runs: look for events for up to |most| before a wait gives the processor away, when the last
 * waits were short. 0, which is how a loop begins: never. What it costs at most is in window.h. */
void cgn_loop_poll(struct cgn_loop *l, cgn_nsec most);
/* Run on a thread of its own, named |name|; join with cgn_loop_join after cgn_loop_stop. */
CGN_RC cgn_loop_start_thread(struct cgn_loop *l, const char *name, struct cgn_err *err);
void cgn_loop_join(struct cgn_loop *l);
struct uv_loop_s *cgn_loop_uv(struct cgn_loop *l);

cgn_nsec cgn_loop_now(const struct cgn_loop *l); /* CLOCK_MONOTONIC, read once a turn */
cgn_nsec cgn_clock_now(void);                    /* CLOCK_MONOTONIC, read now; any thread */
uint64_t cgn_clock_wall_ms(void);                /* Unix time; any thread */
void cgn_random(void *p, size_t n);              /* any thread; never fails (aborts) */

/* Timer: embedded in its owner; one shot. Setting again moves it. No callback after cancel. */
struct cgn_timer {
	struct cgn_loop *loop;
	void (*fire)(struct cgn_timer *t);
	cgn_nsec at;      /* 0 = not armed */
	size_t heap_slot; /* private */
};
void cgn_timer_init(struct cgn_timer *t, struct cgn_loop *l, void (*fire)(struct cgn_timer *t));
void cgn_timer_set(struct cgn_timer *t, cgn_nsec delay);
void cgn_timer_cancel(struct cgn_timer *t); /* safe when not armed */

/* Run |fn| on the loop, in order of posting, from any thread. |p| belongs to the message: a post that can't
 * be delivered because the loop has ended still runs fn(loop, arg) from cgn_loop_free, so that ownership is
 * never lost. The node is the caller's memory (embed it), free for reuse inside fn. */
struct cgn_post {
	struct cgn_post *next; /* private */
	void (*fn)(struct cgn_loop *l, struct cgn_post *p);
};
void cgn_loop_post(struct cgn_loop *l, struct cgn_post *p, void (*fn)(struct cgn_loop *, struct cgn_post *));

/* Once at the end of this turn, before the loop sleeps (coalesces writes). Embedded; queuing again is a
 * no-op; a hook that is queued while hooks run goes in the same turn. */
struct cgn_hook {
	struct cgn_link link;
	void (*run)(struct cgn_hook *h);
	bool queued;
};
void cgn_hook_init(struct cgn_hook *h, void (*run)(struct cgn_hook *h));
void cgn_loop_defer(struct cgn_loop *l, struct cgn_hook *h);
void cgn_hook_drop(struct cgn_hook *h);
/* Once when the loop was stopped, or at the latest in cgn_loop_free: for what outlives its owner on purpose.
 * Dropped like any hook. */
void cgn_loop_at_exit(struct cgn_loop *l, struct cgn_hook *h);

/* Free |grave->bury| memory after this turn's callbacks: callbacks already queued must not meet reused
 * memory. */
struct cgn_grave {
	struct cgn_grave *next;
	void (*release)(struct cgn_grave *g);
};
void cgn_loop_bury(struct cgn_loop *l, struct cgn_grave *g, void (*release)(struct cgn_grave *g));

/* Blocking work on the pool (getaddrinfo, disk): |work| on a pool thread, then |done| on the loop. */
struct cgn_job;
CGN_RC cgn_loop_work(struct cgn_loop *l, void (*work)(void *arg), void (*done)(void *arg), void *arg);

/* A per-loop scratch buffer for reads; contents live until the next callback. 64 KiB and the text that stands
 * around them in a protocol come by one read. */
#define CGN_LOOP_SCRATCH (65536 + 4096)
uint8_t *cgn_loop_scratch(struct cgn_loop *l);

/* Signals of the process, on this loop. |fn| gets the number. */
CGN_RC cgn_loop_signal(struct cgn_loop *l, int signo, void (*fn)(void *arg, int signo), void *arg,
	struct cgn_err *err);
