/* SPDX-License-Identifier: Apache-2.0 */
/* loop: one event loop on one thread: timers, posts from other threads, work after the turn, the clock. Call
 * everything here on the loop's own thread, except cgn_loop_post and cgn_loop_stop. */
#pragma once
#include <stdbool.h>

#include "base/core/err.h"
#include "base/core/list.h"
#include "base/core/str.h"

struct cgn_loop;
struct uv_loop_s;

CGN_RC cgn_loop_new(struct cgn_loop **out, struct cgn_err *err);
void cgn_loop_free(struct cgn_loop **take); /* Call after cgn_loop_run returned, with every handle closed. */
/* Run |*take| once more, for the callbacks of closing handles, and free it. NULL-safe. */
void cgn_loop_close(struct cgn_loop **take);
void cgn_loop_run(struct cgn_loop *l);  /* Run until cgn_loop_stop, then drain closing handles. */
void cgn_loop_stop(struct cgn_loop *l); /* Any thread; idempotent. */
/* Let the loop look for events for up to |most| before a wait gives the processor away, when the last waits
 * were short. Call before the loop runs. 0, the default, never polls. window.h states the cost. */
void cgn_loop_poll(struct cgn_loop *l, cgn_nsec most);
/* Run the loop on a thread of its own, named |name|. Join it with cgn_loop_join after cgn_loop_stop. */
CGN_RC cgn_loop_start_thread(struct cgn_loop *l, const char *name, struct cgn_err *err);
void cgn_loop_join(struct cgn_loop *l);
struct uv_loop_s *cgn_loop_uv(struct cgn_loop *l);

cgn_nsec cgn_loop_now(const struct cgn_loop *l); /* CLOCK_MONOTONIC, read once a turn. */
/* Like cgn_loop_now, less the time for which the loop stood still while a timer was due: a process that was
 * stopped, a machine that was paused or overloaded. Use it to say that a peer was silent, because what the peer
 * sent meanwhile was not read. */
cgn_nsec cgn_loop_listened(const struct cgn_loop *l);
cgn_nsec cgn_clock_now(void);     /* CLOCK_MONOTONIC, read now; any thread. */
uint64_t cgn_clock_wall_ms(void); /* Unix time in ms; any thread. */
/* Fill |p| with random bytes. Any thread; never fails (aborts). */
void cgn_random(void *p, size_t n);

/* A one-shot timer, embedded in its owner. Setting an armed timer moves it. After cancel the callback does
 * not run. */
struct cgn_timer {
	struct cgn_loop *loop;
	void (*fire)(struct cgn_timer *t);
	cgn_nsec at;      /* When it fires; 0: not armed. */
	size_t heap_slot; /* private */
};
void cgn_timer_init(struct cgn_timer *t, struct cgn_loop *l, void (*fire)(struct cgn_timer *t));
void cgn_timer_set(struct cgn_timer *t, cgn_nsec delay);
void cgn_timer_cancel(struct cgn_timer *t); /* Safe when the timer is not armed. */

/* Run |fn| on the loop, in posting order, from any thread. |p| belongs to the message: if the loop has ended,
 * cgn_loop_free still runs fn(loop, arg), so that ownership is never lost. The node is the caller's memory
 * (embed it) and may be reused inside fn. */
struct cgn_post {
	struct cgn_post *next; /* private */
	void (*fn)(struct cgn_loop *l, struct cgn_post *p);
};
void cgn_loop_post(struct cgn_loop *l, struct cgn_post *p, void (*fn)(struct cgn_loop *, struct cgn_post *));

/* Run once at the end of this turn, before the loop sleeps (coalesces writes). Embedded in its owner. Queuing
 * a queued hook does nothing; a hook queued while hooks run goes in the same turn. */
struct cgn_hook {
	struct cgn_link link;
	void (*run)(struct cgn_hook *h);
	bool queued;
};
void cgn_hook_init(struct cgn_hook *h, void (*run)(struct cgn_hook *h));
void cgn_loop_defer(struct cgn_loop *l, struct cgn_hook *h);
void cgn_hook_drop(struct cgn_hook *h);
/* Run |h| once when the loop was stopped, at the latest in cgn_loop_free: for objects that outlive their
 * owner on purpose. Dropped like any hook. */
void cgn_loop_at_exit(struct cgn_loop *l, struct cgn_hook *h);

/* Free the memory of |grave->bury| after this turn's callbacks, because queued callbacks must not meet reused
 * memory. */
struct cgn_grave {
	struct cgn_grave *next;
	void (*release)(struct cgn_grave *g);
};
void cgn_loop_bury(struct cgn_loop *l, struct cgn_grave *g, void (*release)(struct cgn_grave *g));

/* Blocking work on the pool (getaddrinfo, disk): |work| runs on a pool thread, then |done| on the loop. */
struct cgn_job;
void cgn_loop_work(struct cgn_loop *l, void (*work)(void *arg), void (*done)(void *arg), void *arg);
/* The same for a write to the disk. Those of a loop run one after the other: a disk that hangs holds one thread of the
 * pool, and leaves the others to the rest of the work. */
void cgn_loop_write(struct cgn_loop *l, void (*work)(void *arg), void (*done)(void *arg), void *arg);

/* A scratch buffer of the loop for reads; its contents live until the next callback. Its size lets one read
 * take 64 KiB and a protocol's text around them. */
#define CGN_LOOP_SCRATCH (65536 + 4096)
uint8_t *cgn_loop_scratch(struct cgn_loop *l);

/* Handle a signal of the process on this loop; |fn| gets the signal's number. */
CGN_RC cgn_loop_signal(struct cgn_loop *l, int signo, void (*fn)(void *arg, int signo), void *arg,
	struct cgn_err *err);
