/* SPDX-License-Identifier: Apache-2.0 */
/* loop, inside: the timer heap and the loop's own fields. */
#pragma once
#include <stdatomic.h>

#include <pthread.h>
#include <uv.h>

#include "io/os/loop/loop.h"
#include "io/os/loop/window.h"

/* A 4-ary min-heap of armed timers. Each timer knows its slot, so that moving and cancelling need no
 * search. */
struct timer_heap {
	struct cgn_timer **slots;
	size_t n, cap;
};
/* Requires: t->at is set and t is not in the heap. */
void timer_heap_put(struct timer_heap *h, struct cgn_timer *t);
void timer_heap_move(struct timer_heap *h, struct cgn_timer *t); /* Call after t->at changed. */
void timer_heap_drop(struct timer_heap *h, struct cgn_timer *t);
struct cgn_timer *timer_heap_first(const struct timer_heap *h); /* NULL when empty */
void timer_heap_fini(struct timer_heap *h);

/* Allocated apart, so that reading the time through a const loop may refresh it. */
struct loop_clock {
	cgn_nsec now;
	uint64_t uv_ms; /* Value of uv_now when |now| was read. */
	bool read;      /* |now| was read since the last sleep. */
};

struct loop_signal {
	struct loop_signal *next;
	uv_signal_t uv;
	void (*fn)(void *arg, int signo);
	void *arg;
};

#define LOOP_LATE (100 * CGN_MSEC) /* An alarm that is later than this shows that the loop stood still. */
struct cgn_loop {
	uint32_t tag;
	uv_loop_t uv;
	uv_timer_t alarm; /* Armed for the first timer of the heap. */
	uv_prepare_t before_sleep;
	uv_check_t after_poll;
	uv_async_t wake;
	struct loop_clock *clock;
	struct timer_heap timers;
	struct window window;
	cgn_nsec alarm_at;    /* When |alarm| fires; 0: not armed. */
	cgn_nsec stood_still; /* Sum of the delays of |alarm| that were longer than LOOP_LATE. */
	struct cgn_link hooks, exits;
	struct cgn_grave *graves;
	_Atomic(struct cgn_post *) posts; /* A stack: the last post is first. */
	atomic_bool stopping;
	size_t jobs;            /* Jobs on the pool or on their way back, and writes that wait. */
	struct cgn_link writes; /* Writes that wait for the end of the one on the pool. */
	bool writing;
	struct loop_signal *signals;
	uint8_t *scratch;
	pthread_t thread;
	bool threaded;
	char name[16];
};
