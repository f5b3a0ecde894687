/* SPDX-License-Identifier: Apache-2.0 */
/* loop: libuv with the project's clock, timers, hooks and posts. A turn runs timers, sleeps in epoll, then
 * runs I/O callbacks, hooks and close callbacks. Hooks run once more before the next sleep, so that no queued
 * hook waits through it. */
#include "io/os/loop/loop.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sys/random.h>

#include "base/unlikely/unlikely.h"
#include "loop_priv.h"

#define LOOP_TAG 0x100b10a5U

/* ---- clock, randomness: any thread ---- */

cgn_nsec cgn_clock_now(void)
{
	struct timespec ts;
	CGN_MUST(clock_gettime(CLOCK_MONOTONIC, &ts) == 0);
	return (cgn_nsec)ts.tv_sec * CGN_SEC + (cgn_nsec)ts.tv_nsec;
}

uint64_t cgn_clock_wall_ms(void)
{
	struct timespec ts;
	CGN_MUST(clock_gettime(CLOCK_REALTIME, &ts) == 0);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

void cgn_random(void *p, size_t n)
{
	for (uint8_t *at = p; n > 0;) {
		ssize_t got = getrandom(at, n, 0);
		CGN_MUST(got > 0 || errno == EINTR);
		if (got > 0) {
			at += got;
			n -= (size_t)got;
		}
	}
}

cgn_nsec cgn_loop_now(const struct cgn_loop *l)
{
	/* Read once after each sleep, and again as soon as libuv's clock moved, which has steps of 1 ms. */
	uint64_t ms = uv_now(&l->uv);
	if (!l->clock->read || ms != l->clock->uv_ms) {
		l->clock->read = true;
		l->clock->uv_ms = ms;
		l->clock->now = cgn_clock_now();
	}
	return l->clock->now;
}

cgn_nsec cgn_loop_listened(const struct cgn_loop *l)
{
	return cgn_since(cgn_loop_now(l), l->stood_still);
}

/* ---- timers ---- */

void cgn_timer_init(struct cgn_timer *t, struct cgn_loop *l, void (*fire)(struct cgn_timer *t))
{
	*t = (struct cgn_timer){.loop = l, .fire = fire};
}

void cgn_timer_set(struct cgn_timer *t, cgn_nsec delay)
{
	bool armed = t->at != 0;
	t->at = cgn_loop_now(t->loop) + delay;
	if (armed)
		timer_heap_move(&t->loop->timers, t);
	else
		timer_heap_put(&t->loop->timers, t);
}

void cgn_timer_cancel(struct cgn_timer *t)
{
	if (t->at == 0)
		return;
	timer_heap_drop(&t->loop->timers, t);
	t->at = 0;
}

static void fire_due(uv_timer_t *alarm)
{
	struct cgn_loop *l = alarm->data;
	cgn_nsec now = cgn_loop_now(l);
	if (now > l->alarm_at + LOOP_LATE)
		l->stood_still += cgn_since(now, l->alarm_at);
	l->alarm_at = 0;
	/* A timer set from a callback is due later than |now| unless its delay is 0. Bound the round by the
	 * number of timers at its start. */
	size_t most = l->timers.n;
	struct cgn_timer *t;
	while (most-- > 0 && (t = timer_heap_first(&l->timers)) != NULL && t->at <= now) {
		cgn_timer_cancel(t);
		t->fire(t);
		if (unlikely_way(UNLIKELY_timers_apart))
			return; /* before_sleep arms the alarm for the rest. */
	}
}

/* Called once before each sleep instead of at each set and cancel. */
static void arm_alarm(struct cgn_loop *l)
{
	const struct cgn_timer *t = timer_heap_first(&l->timers);
	cgn_nsec at = t != NULL ? t->at : 0;
	if (at == l->alarm_at)
		return;
	l->alarm_at = at;
	if (at == 0) {
		uv_timer_stop(&l->alarm);
		return;
	}
	uint64_t due_ms = (at + CGN_MSEC - 1) / CGN_MSEC + unlikely_way(UNLIKELY_timer_late),
		 now_ms = uv_now(&l->uv);
	uv_timer_start(&l->alarm, fire_due, due_ms > now_ms ? due_ms - now_ms : 0, 0);
}

/* ---- hooks and graves ---- */

void cgn_hook_init(struct cgn_hook *h, void (*run)(struct cgn_hook *h))
{
	cgn_list_init(&h->link);
	h->run = run;
	h->queued = false;
}

static void hook_enlist(struct cgn_link *list, struct cgn_hook *h)
{
	if (h->queued)
		return;
	h->queued = true;
	cgn_list_push(list, &h->link);
}

void cgn_loop_defer(struct cgn_loop *l, struct cgn_hook *h)
{
	hook_enlist(&l->hooks, h);
}

void cgn_loop_at_exit(struct cgn_loop *l, struct cgn_hook *h)
{
	hook_enlist(&l->exits, h);
}

void cgn_hook_drop(struct cgn_hook *h)
{
	cgn_list_drop(&h->link);
	h->queued = false;
}

static void run_hooks(struct cgn_link *list)
{
	for (struct cgn_link *first; (first = cgn_list_first(list)) != NULL;) {
		struct cgn_hook *h = CGN_CONTAINER(first, struct cgn_hook, link);
		cgn_hook_drop(h);
		h->run(h);
	}
}

void cgn_loop_bury(struct cgn_loop *l, struct cgn_grave *g, void (*release)(struct cgn_grave *g))
{
	g->release = release;
	g->next = l->graves;
	l->graves = g;
}

static void release_graves(struct cgn_loop *l)
{
	while (l->graves != NULL) {
		struct cgn_grave *g = l->graves;
		l->graves = g->next;
		g->release(g);
	}
}

static void on_after_poll(uv_check_t *h)
{
	struct cgn_loop *l = h->data;
	run_hooks(&l->hooks);
}

static void before_sleep(struct cgn_loop *l)
{
	do {
		run_hooks(&l->hooks);
		release_graves(l); /* Release the objects that the close callbacks of the last turn buried. */
	} while (!cgn_list_empty(&l->hooks) || l->graves != NULL);
	arm_alarm(l);
	l->clock->read = false;
}

static void on_before_sleep(uv_prepare_t *h)
{
	before_sleep(h->data);
}

/* ---- posts ---- */

void cgn_loop_post(struct cgn_loop *l, struct cgn_post *p, void (*fn)(struct cgn_loop *, struct cgn_post *))
{
	p->fn = fn;
	struct cgn_post *head = atomic_load_explicit(&l->posts, memory_order_relaxed);
	do
		p->next = head;
	while (!atomic_compare_exchange_weak_explicit(&l->posts, &head, p, memory_order_release,
		memory_order_relaxed));
	/* If the stack was not empty, the poster that found it empty woke the loop, and the loop has not read
	 * the stack yet. */
	if (head == NULL || unlikely_way(UNLIKELY_wakes_twice))
		CGN_MUST(uv_async_send(&l->wake) == 0);
}

static bool run_posts(struct cgn_loop *l)
{
	struct cgn_post *last = atomic_exchange_explicit(&l->posts, NULL, memory_order_acquire),
			*first = NULL;
	bool any = last != NULL;
	while (last != NULL) { /* Reverse the stack: the first post runs first. */
		struct cgn_post *before = last->next;
		last->next = first;
		first = last;
		last = before;
	}
	while (first != NULL) {
		struct cgn_post *p = first;
		first = p->next;
		p->fn(l, p);
	}
	return any;
}

static void on_wake(uv_async_t *h)
{
	struct cgn_loop *l = h->data;
	(void)run_posts(l);
	if (atomic_load_explicit(&l->stopping, memory_order_acquire))
		uv_stop(&l->uv);
}

/* ---- life ---- */

/* Count the libuv handles that the loop itself owns; none of them keeps the loop alive. */
static int open_handles(struct cgn_loop *l)
{
	int rc = uv_timer_init(&l->uv, &l->alarm);
	rc = rc == 0 ? uv_prepare_init(&l->uv, &l->before_sleep) : rc;
	rc = rc == 0 ? uv_check_init(&l->uv, &l->after_poll) : rc;
	rc = rc == 0 ? uv_async_init(&l->uv, &l->wake, on_wake) : rc;
	if (rc != 0)
		return rc;
	l->alarm.data = l->before_sleep.data = l->after_poll.data = l->wake.data = l;
	rc = uv_prepare_start(&l->before_sleep, on_before_sleep);
	return rc == 0 ? uv_check_start(&l->after_poll, on_after_poll) : rc;
}

CGN_RC cgn_loop_new(struct cgn_loop **out, struct cgn_err *err)
{
	struct cgn_loop *l = CGN_NEW(struct cgn_loop);
	int rc = uv_loop_init(&l->uv);
	if (rc != 0) {
		free(l);
		return CGN_FAIL(err, NO_MEMORY, "cannot start an event loop: %s", uv_strerror(rc));
	}
	l->tag = LOOP_TAG;
	l->clock = CGN_NEW(struct loop_clock);
	l->scratch = CGN_NEW_ARRAY(uint8_t, CGN_LOOP_SCRATCH);
	cgn_list_init(&l->hooks);
	cgn_list_init(&l->writes);
	cgn_list_init(&l->exits);
	/* Making these handles only fills memory, except for the wake descriptor. Without descriptors at boot the
	 * program cannot start. */
	CGN_MUST(open_handles(l) == 0);
	*out = l;
	return CGN_OK;
}

void cgn_loop_poll(struct cgn_loop *l, cgn_nsec most)
{
	CGN_LIVE(l, LOOP_TAG);
	window_init(&l->window, most, cgn_clock_now());
}

/* Wait until libuv has something to do, or |timeout| ms (-1: no limit) have passed. */
static void wait_polling(struct cgn_loop *l, int timeout)
{
	struct pollfd ready = {.fd = uv_backend_fd(&l->uv), .events = POLLIN};
	cgn_nsec began = cgn_clock_now(), now = began, most = window_open(&l->window, began);
	for (; cgn_since(now, began) < most; now = cgn_clock_now())
		if (poll(&ready, 1, 0) != 0) {
			window_found(&l->window, cgn_since(cgn_clock_now(), began));
			return;
		}
	cgn_nsec polled = cgn_since(now, began);
	(void)poll(&ready, 1, timeout);
	window_blocked(&l->window, polled, cgn_since(cgn_clock_now(), began));
}

/* Run a turn as libuv does, except that the wait is done here and libuv itself never waits. */
static void turn_polling(struct cgn_loop *l)
{
	uv_run(&l->uv, UV_RUN_NOWAIT);
	uv_update_time(&l->uv); /* Count due timers from now, not from before the callbacks. */
	before_sleep(l);        /* Include timers that were set in this turn. */
	int timeout = uv_backend_timeout(&l->uv);
	/* 0: a timer is due, or libuv has not yet told the kernel what to watch. A stop requested after this
	 * check wakes the loop. */
	if (timeout == 0 || atomic_load_explicit(&l->stopping, memory_order_acquire))
		return;
	wait_polling(l, timeout);
	uv_update_time(&l->uv);
}

void cgn_loop_run(struct cgn_loop *l)
{
	CGN_LIVE(l, LOOP_TAG);
	uv_update_time(&l->uv);
	while (!atomic_load_explicit(&l->stopping, memory_order_acquire))
		if (l->window.most > 0)
			turn_polling(l);
		else
			uv_run(&l->uv, UV_RUN_DEFAULT);
	run_hooks(&l->exits);
	/* A close callback may close other handles, so run a few turns; cgn_loop_free handles what closes
	 * later. */
	for (int turn = 0; turn < 4; turn++)
		uv_run(&l->uv, UV_RUN_NOWAIT);
	atomic_store_explicit(&l->stopping, false, memory_order_release);
}

void cgn_loop_stop(struct cgn_loop *l)
{
	atomic_store_explicit(&l->stopping, true, memory_order_release);
	CGN_MUST(uv_async_send(&l->wake) == 0);
}

static void *thread_main(void *arg)
{
	struct cgn_loop *l = arg;
	(void)pthread_setname_np(pthread_self(), l->name);
	cgn_loop_run(l);
	return NULL;
}

CGN_RC cgn_loop_start_thread(struct cgn_loop *l, const char *name, struct cgn_err *err)
{
	CGN_LIVE(l, LOOP_TAG);
	CGN_MUST(!l->threaded);
	(void)cgn_str_copyz(l->name, sizeof l->name, cgn_str_of(name));
	int rc = pthread_create(&l->thread, NULL, thread_main, l);
	if (rc != 0)
		return CGN_FAIL(err, UNAVAILABLE, "cannot start thread %s: %s", name, strerror(rc));
	l->threaded = true;
	return CGN_OK;
}

void cgn_loop_join(struct cgn_loop *l)
{
	CGN_LIVE(l, LOOP_TAG);
	if (!l->threaded)
		return;
	CGN_MUST(pthread_join(l->thread, NULL) == 0);
	l->threaded = false;
}

static void free_signal(uv_handle_t *h)
{
	free(h->data);
}

static void close_handles(struct cgn_loop *l)
{
	while (l->signals != NULL) {
		struct loop_signal *s = l->signals;
		l->signals = s->next;
		uv_close((uv_handle_t *)&s->uv, free_signal);
	}
	uv_close((uv_handle_t *)&l->alarm, NULL);
	uv_close((uv_handle_t *)&l->before_sleep, NULL);
	uv_close((uv_handle_t *)&l->after_poll, NULL);
	uv_close((uv_handle_t *)&l->wake, NULL);
}

/* The owner ends: a signal that comes now finds nothing to call. The handles swallow it until they are closed. */
static void signals_mute(struct cgn_loop *l)
{
	for (struct loop_signal *s = l->signals; s != NULL; s = s->next)
		s->fn = NULL;
}

void cgn_loop_free(struct cgn_loop **take)
{
	struct cgn_loop *l = CGN_TAKE_LIVE(take, LOOP_TAG);
	if (l == NULL)
		return;
	CGN_MUST(!l->threaded);
	signals_mute(l);
	do { /* Messages, jobs and hooks release their memory when they run. */
		run_hooks(&l->exits);
		uv_run(&l->uv, l->jobs > 0 ? UV_RUN_ONCE : UV_RUN_NOWAIT);
	} while (run_posts(l) || l->jobs > 0 || !cgn_list_empty(&l->hooks) || !cgn_list_empty(&l->exits));
	close_handles(l);
	for (int turn = 0; turn < 4; turn++)
		uv_run(&l->uv, UV_RUN_NOWAIT);
	release_graves(l);
	int rc = uv_loop_close(&l->uv);
	if (rc != 0) /* An owner left a handle open, or a request waits. */
		uv_print_all_handles(&l->uv, stderr);
	CGN_MUST(rc == 0);
	timer_heap_fini(&l->timers);
	free(l->clock);
	free(l->scratch);
	l->tag = 0;
	free(l);
}

void cgn_loop_close(struct cgn_loop **take)
{
	if (*take == NULL)
		return;
	signals_mute(*take);
	cgn_loop_stop(*take);
	cgn_loop_run(*take);
	cgn_loop_free(take);
}

struct uv_loop_s *cgn_loop_uv(struct cgn_loop *l)
{
	return &l->uv;
}

uint8_t *cgn_loop_scratch(struct cgn_loop *l)
{
	return l->scratch;
}

/* ---- pool and signals ---- */

struct cgn_job {
	uv_work_t uv;
	struct cgn_link link; /* In loop->writes while it waits. */
	bool writes;
	struct cgn_loop *loop;
	void (*work)(void *arg);
	void (*done)(void *arg);
	void *arg;
};

static void job_work(uv_work_t *w)
{
	struct cgn_job *j = w->data;
	j->work(j->arg);
}

static void job_done(uv_work_t *w, int status);

static void job_start(struct cgn_job *j)
{
	j->uv.data = j;
	CGN_MUST(uv_queue_work(&j->loop->uv, &j->uv, job_work, job_done) == 0);
}

static void writes_next(struct cgn_loop *l)
{
	struct cgn_link *first = cgn_list_first(&l->writes);
	l->writing = first != NULL;
	if (first == NULL)
		return;
	cgn_list_drop(first);
	job_start(CGN_CONTAINER(first, struct cgn_job, link));
}

static void job_done(uv_work_t *w, int status)
{
	(void)status; /* No caller cancels a job. */
	struct cgn_job *j = w->data;
	j->loop->jobs--;
	if (j->writes)
		writes_next(j->loop);
	j->done(j->arg);
	free(j);
}

static struct cgn_job *job_new(struct cgn_loop *l, void (*work)(void *arg), void (*done)(void *arg),
	void *arg)
{
	CGN_LIVE(l, LOOP_TAG);
	struct cgn_job *j = CGN_NEW(struct cgn_job);
	*j = (struct cgn_job){.loop = l, .work = work, .done = done, .arg = arg};
	l->jobs++;
	return j;
}

void cgn_loop_work(struct cgn_loop *l, void (*work)(void *arg), void (*done)(void *arg), void *arg)
{
	job_start(job_new(l, work, done, arg));
}

void cgn_loop_write(struct cgn_loop *l, void (*work)(void *arg), void (*done)(void *arg), void *arg)
{
	struct cgn_job *j = job_new(l, work, done, arg);
	j->writes = true;
	cgn_list_push(&l->writes, &j->link);
	if (!l->writing)
		writes_next(l);
}

static void on_signal(uv_signal_t *h, int signo)
{
	struct loop_signal *s = h->data;
	if (s->fn != NULL)
		s->fn(s->arg, signo);
}

CGN_RC cgn_loop_signal(struct cgn_loop *l, int signo, void (*fn)(void *arg, int signo), void *arg,
	struct cgn_err *err)
{
	CGN_LIVE(l, LOOP_TAG);
	struct loop_signal *s = CGN_NEW(struct loop_signal);
	int rc = uv_signal_init(&l->uv, &s->uv);
	if (rc != 0) {
		free(s);
		return CGN_FAIL(err, UNAVAILABLE, "cannot watch signal %d: %s", signo, uv_strerror(rc));
	}
	s->fn = fn;
	s->arg = arg;
	s->uv.data = s;
	s->next = l->signals;
	l->signals = s; /* The loop closes the signal handle, whatever follows. */
	rc = uv_signal_start(&s->uv, on_signal, signo);
	if (rc != 0)
		return CGN_FAIL(err, UNAVAILABLE, "cannot watch signal %d: %s", signo, uv_strerror(rc));
	return CGN_OK;
}
