/* SPDX-License-Identifier: Apache-2.0 */
/* uv: the part of libuv's interface that the programs use, in simulated time. The order within a turn is libuv's:
 * timers, prepare, wait, poll callbacks, async and work, check, close callbacks. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include <uv.h>

#include "world_priv.h"

/* Most calls and KiB of a turn of a loop: 50 ms at a microsecond each. Turns of routers are below 1,000, and 4,000 where a file is
 * read by bytes; those of cgn-sim below 11,000. */
#define TURN_MOST    50000
#define POOL_THREADS 4 /* As libuv has */
#define FLAG_CLOSING 2U

struct watcher {
	struct sock_watch watch;
	struct cgn_link looked; /* In sim_loop.looks: its readiness is to be looked at */
	uv_poll_t *handle;
	struct object *object;
	int events;
	uv_poll_cb cb;
};

struct sim_loop {
	struct cgn_link link; /* In the process's list */
	struct fiber *waits;  /* The fiber that waits in uv_run */
	struct cgn_link looks;
	uv_timer_t *timer; /* Armed, or NULL */
	uint64_t timer_at;
	uv_prepare_t *prepare;
	uv_check_t *check;
	uv_async_t *async;
	bool woken;           /* uv_async_send */
	struct cgn_link done; /* sim_work.link: finished by the pool */
	struct cgn_link signals;
	uv_handle_t *closing;
	uint64_t ms; /* uv_now */
	size_t handles;
	size_t works;
};

struct sim_work {
	struct cgn_link link;
	uv_work_t *req;
	struct sim_loop *loop;
	uv_work_cb work;
	uv_after_work_cb after;
};

struct sim_signal {
	struct cgn_link link; /* In sim_loop.signals while it has arrived */
	uv_signal_t *handle;
	uv_signal_cb cb;
	int signo;
};

static struct sim_loop *sim_of(const uv_loop_t *l)
{
	return l->internal_fields;
}

static void loop_wake(struct sim_loop *s)
{
	if (s->waits != NULL)
		fiber_wake(s->waits);
}

/* ---- loops ---- */

int __wrap_uv_loop_init(uv_loop_t *l);
int __wrap_uv_loop_init(uv_loop_t *l)
{
	struct sim_loop *s = CGN_NEW(struct sim_loop);
	*l = (uv_loop_t){.internal_fields = s, .data = l->data};
	cgn_list_init(&s->looks);
	cgn_list_init(&s->done);
	cgn_list_init(&s->signals);
	cgn_list_push(&this_proc()->loops, &s->link);
	s->ms = world.now / WORLD_MS;
	return 0;
}

int __wrap_uv_loop_close(uv_loop_t *l);
int __wrap_uv_loop_close(uv_loop_t *l)
{
	struct sim_loop *s = sim_of(l);
	if (s->handles > 0 || s->works > 0)
		return UV_EBUSY;
	cgn_list_drop(&s->link); /* The record stays: a wake-up on its way names it */
	s->waits = NULL;
	l->internal_fields = NULL;
	return 0;
}

void __wrap_uv_stop(uv_loop_t *l);
void __wrap_uv_stop(uv_loop_t *l)
{
	l->stop_flag = 1;
}

uint64_t __wrap_uv_now(const uv_loop_t *l);
uint64_t __wrap_uv_now(const uv_loop_t *l)
{
	return sim_of(l)->ms;
}

void __wrap_uv_update_time(uv_loop_t *l);
void __wrap_uv_update_time(uv_loop_t *l)
{
	sim_of(l)->ms = world.now / WORLD_MS;
}

int __wrap_uv_backend_fd(const uv_loop_t *l);
int __wrap_uv_backend_fd(const uv_loop_t *l)
{
	(void)l;
	world_fail("a loop asks for libuv's descriptor: router.busy_poll is not simulated");
}

int __wrap_uv_backend_timeout(const uv_loop_t *l);
int __wrap_uv_backend_timeout(const uv_loop_t *l)
{
	(void)l;
	return 0;
}

const char *__wrap_uv_strerror(int e);
const char *__wrap_uv_strerror(int e)
{
	return strerror(-e);
}

void __wrap_uv_print_all_handles(uv_loop_t *l, FILE *f);
void __wrap_uv_print_all_handles(uv_loop_t *l, FILE *f)
{
	fprintf(f, "%zu handles, %zu works\n", sim_of(l)->handles, sim_of(l)->works);
}

/* ---- handles ---- */

static void handle_init(uv_loop_t *l, uv_handle_t *h, uv_handle_type type)
{
	h->loop = l;
	h->type = type;
	h->flags = 0;
	h->close_cb = NULL;
	h->u.reserved[0] = NULL;
	sim_of(l)->handles++;
}

int __wrap_uv_timer_init(uv_loop_t *l, uv_timer_t *t);
int __wrap_uv_timer_init(uv_loop_t *l, uv_timer_t *t)
{
	handle_init(l, (uv_handle_t *)t, UV_TIMER);
	return 0;
}

int __wrap_uv_timer_start(uv_timer_t *t, uv_timer_cb cb, uint64_t timeout, uint64_t repeat);
int __wrap_uv_timer_start(uv_timer_t *t, uv_timer_cb cb, uint64_t timeout, uint64_t repeat)
{
	struct sim_loop *s = sim_of(t->loop);
	if (repeat != 0 || (s->timer != NULL && s->timer != t))
		world_fail("a loop has a second timer: not simulated");
	t->timer_cb = cb;
	s->timer = t;
	s->timer_at = s->ms + timeout;
	return 0;
}

int __wrap_uv_timer_stop(uv_timer_t *t);
int __wrap_uv_timer_stop(uv_timer_t *t)
{
	struct sim_loop *s = sim_of(t->loop);
	if (s->timer == t)
		s->timer = NULL;
	return 0;
}

int __wrap_uv_prepare_init(uv_loop_t *l, uv_prepare_t *h);
int __wrap_uv_prepare_init(uv_loop_t *l, uv_prepare_t *h)
{
	handle_init(l, (uv_handle_t *)h, UV_PREPARE);
	return 0;
}

int __wrap_uv_prepare_start(uv_prepare_t *h, uv_prepare_cb cb);
int __wrap_uv_prepare_start(uv_prepare_t *h, uv_prepare_cb cb)
{
	h->prepare_cb = cb;
	sim_of(h->loop)->prepare = h;
	return 0;
}

int __wrap_uv_check_init(uv_loop_t *l, uv_check_t *h);
int __wrap_uv_check_init(uv_loop_t *l, uv_check_t *h)
{
	handle_init(l, (uv_handle_t *)h, UV_CHECK);
	return 0;
}

int __wrap_uv_check_start(uv_check_t *h, uv_check_cb cb);
int __wrap_uv_check_start(uv_check_t *h, uv_check_cb cb)
{
	h->check_cb = cb;
	sim_of(h->loop)->check = h;
	return 0;
}

int __wrap_uv_async_init(uv_loop_t *l, uv_async_t *h, uv_async_cb cb);
int __wrap_uv_async_init(uv_loop_t *l, uv_async_t *h, uv_async_cb cb)
{
	handle_init(l, (uv_handle_t *)h, UV_ASYNC);
	h->async_cb = cb;
	sim_of(l)->async = h;
	return 0;
}

static void on_async(void *arg, uint64_t tag)
{
	(void)tag;
	loop_wake(arg);
}

int __wrap_uv_async_send(uv_async_t *h);
int __wrap_uv_async_send(uv_async_t *h)
{
	struct sim_loop *s = sim_of(h->loop);
	if (s->woken)
		return 0;
	s->woken = true;
	if (world_chance(4)) /* The other thread is slow to wake */
		event_at(world.now + world_draw(2 * WORLD_MS), on_async, s, 0);
	else
		loop_wake(s);
	return 0;
}

/* ---- descriptors ---- */

static void watcher_look(struct watcher *w)
{
	struct sim_loop *s = sim_of(w->handle->loop);
	if (cgn_list_empty(&w->looked))
		cgn_list_push(&s->looks, &w->looked);
	loop_wake(s);
}

static void on_changed(struct sock_watch *watch)
{
	struct watcher *w = CGN_CONTAINER(watch, struct watcher, watch);
	if (w->events != 0)
		watcher_look(w);
}

int __wrap_uv_poll_init(uv_loop_t *l, uv_poll_t *h, int fd);
int __wrap_uv_poll_init(uv_loop_t *l, uv_poll_t *h, int fd)
{
	struct object *o = proc_fd(fd);
	if (o == NULL || o->kind != OBJECT_SOCKET)
		return o == NULL ? UV_EBADF : UV_EPERM;
	handle_init(l, (uv_handle_t *)h, UV_POLL);
	struct watcher *w = CGN_NEW(struct watcher);
	*w = (struct watcher){.handle = h, .object = o};
	cgn_list_init(&w->looked);
	o->flags |= O_NONBLOCK;
	h->u.reserved[0] = w;
	sock_watch(o->sock, &w->watch, on_changed);
	return 0;
}

int __wrap_uv_poll_start(uv_poll_t *h, int events, uv_poll_cb cb);
int __wrap_uv_poll_start(uv_poll_t *h, int events, uv_poll_cb cb)
{
	struct watcher *w = h->u.reserved[0];
	w->events = events;
	w->cb = cb;
	watcher_look(w);
	return 0;
}

int __wrap_uv_poll_stop(uv_poll_t *h);
int __wrap_uv_poll_stop(uv_poll_t *h)
{
	struct watcher *w = h->u.reserved[0];
	w->events = 0;
	cgn_list_drop(&w->looked);
	return 0;
}

/* Return the events of libuv that the watcher is to be told; -1: an error. */
static int watcher_events(const struct watcher *w)
{
	unsigned r = sock_ready(w->object->sock);
	int events = 0;
	if (r & POLLERR)
		return -1;
	if (r & (POLLIN | POLLHUP) && w->events & UV_READABLE)
		events |= UV_READABLE;
	if (r & (POLLOUT | POLLHUP) && w->events & UV_WRITABLE)
		events |= UV_WRITABLE;
	if (r & (POLLRDHUP | POLLHUP) && w->events & UV_DISCONNECT)
		events |= UV_DISCONNECT;
	return events;
}

static void run_watcher(struct watcher *w)
{
	int events = w->events != 0 ? watcher_events(w) : 0;
	if (events == 0)
		return;
	if (events < 0) {
		w->events = 0;
		w->cb(w->handle, UV_EBADF, 0);
		return;
	}
	watcher_look(w); /* Level-triggered: looked at again in the next turn */
	w->cb(w->handle, 0, events);
}

static bool has_events(struct sim_loop *s)
{
	cgn_list_each_safe (l, &s->looks) {
		struct watcher *w = CGN_CONTAINER(l, struct watcher, looked);
		if (w->events != 0 && watcher_events(w) != 0)
			return true;
		cgn_list_drop(l);
	}
	return false;
}

/* Call the watchers that are ready back, in an order that the seed chooses. */
static void run_watchers(struct sim_loop *s)
{
	struct cgn_link now;
	size_t most = 0;
	cgn_list_init(&now);
	for (struct cgn_link *l; (l = cgn_list_first(&s->looks)) != NULL; most++) {
		cgn_list_drop(l);
		if (world_chance(2))
			cgn_list_push(&now, l);
		else
			cgn_list_push_front(&now, l);
	}
	for (struct cgn_link *l; (l = cgn_list_first(&now)) != NULL;) {
		cgn_list_drop(l);
		run_watcher(CGN_CONTAINER(l, struct watcher, looked));
	}
}

/* ---- the pool ---- */

static void pool_take(struct world_proc *p);

static void *pool_run(void *arg)
{
	struct sim_work *k = arg;
	struct world_proc *p = this_proc();
	if (world_chance(2))
		world_sleep(world_draw(world_chance(16) ? 50 * WORLD_MS : WORLD_MS));
	k->work(k->req);
	cgn_list_push(&k->loop->done, &k->link);
	loop_wake(k->loop);
	p->pool.busy--;
	pool_take(p);
	return NULL;
}

static void pool_take(struct world_proc *p)
{
	struct cgn_link *l;
	while (p->pool.busy < POOL_THREADS && (l = cgn_list_first(&p->pool.waiting)) != NULL) {
		cgn_list_drop(l);
		p->pool.busy++;
		fiber_new(p, pool_run, CGN_CONTAINER(l, struct sim_work, link))->detached = true;
	}
}

int __wrap_uv_queue_work(uv_loop_t *l, uv_work_t *req, uv_work_cb work, uv_after_work_cb after);
int __wrap_uv_queue_work(uv_loop_t *l, uv_work_t *req, uv_work_cb work, uv_after_work_cb after)
{
	struct sim_work *k = CGN_NEW(struct sim_work);
	*k = (struct sim_work){.req = req, .loop = sim_of(l), .work = work, .after = after};
	req->loop = l;
	req->type = UV_WORK;
	sim_of(l)->works++;
	cgn_list_push(&this_proc()->pool.waiting, &k->link);
	pool_take(this_proc());
	return 0;
}

static void run_done(struct sim_loop *s)
{
	for (struct cgn_link *l; (l = cgn_list_first(&s->done)) != NULL;) {
		struct sim_work *k = CGN_CONTAINER(l, struct sim_work, link);
		cgn_list_drop(l);
		s->works--;
		uv_work_t *req = k->req;
		uv_after_work_cb after = k->after;
		free(k);
		if (after != NULL)
			after(req, 0);
	}
}

/* ---- signals ---- */

int __wrap_uv_signal_init(uv_loop_t *l, uv_signal_t *h);
int __wrap_uv_signal_init(uv_loop_t *l, uv_signal_t *h)
{
	handle_init(l, (uv_handle_t *)h, UV_SIGNAL);
	struct sim_signal *g = CGN_NEW(struct sim_signal);
	*g = (struct sim_signal){.handle = h};
	cgn_list_init(&g->link);
	h->u.reserved[0] = g;
	return 0;
}

int __wrap_uv_signal_start(uv_signal_t *h, uv_signal_cb cb, int signo);
int __wrap_uv_signal_start(uv_signal_t *h, uv_signal_cb cb, int signo)
{
	struct sim_signal *g = h->u.reserved[0];
	g->cb = cb;
	g->signo = signo;
	this_proc()->handlers[signo] = h;
	return 0;
}

void uv_signal_arrived(void *handle)
{
	uv_signal_t *h = handle;
	struct sim_signal *g = h->u.reserved[0];
	struct sim_loop *s = sim_of(h->loop);
	if (cgn_list_empty(&g->link))
		cgn_list_push(&s->signals, &g->link);
	loop_wake(s);
}

static void run_signals(struct sim_loop *s)
{
	for (struct cgn_link *l; (l = cgn_list_first(&s->signals)) != NULL;) {
		struct sim_signal *g = CGN_CONTAINER(l, struct sim_signal, link);
		cgn_list_drop(l);
		g->cb(g->handle, g->signo);
	}
}

/* ---- closing ---- */

void __wrap_uv_close(uv_handle_t *h, uv_close_cb cb);
void __wrap_uv_close(uv_handle_t *h, uv_close_cb cb)
{
	struct sim_loop *s = sim_of(h->loop);
	if (h->flags & FLAG_CLOSING)
		world_fail("a handle is closed twice");
	h->flags |= FLAG_CLOSING;
	h->close_cb = cb;
	switch ((int)h->type) {
	case UV_TIMER:
		(void)__wrap_uv_timer_stop((uv_timer_t *)h);
		break;
	case UV_PREPARE:
		s->prepare = NULL;
		break;
	case UV_CHECK:
		s->check = NULL;
		break;
	case UV_ASYNC:
		s->async = NULL;
		break;
	case UV_POLL: {
		struct watcher *w = h->u.reserved[0];
		cgn_list_drop(&w->looked);
		cgn_list_drop(&w->watch.link);
		free(w);
		h->u.reserved[0] = NULL;
		break;
	}
	case UV_SIGNAL: {
		struct sim_signal *g = h->u.reserved[0];
		cgn_list_drop(&g->link);
		this_proc()->handlers[g->signo] = NULL;
		free(g);
		break;
	}
	default:
		break;
	}
	h->next_closing = s->closing;
	s->closing = h;
}

static void run_closing(struct sim_loop *s)
{
	uv_handle_t *h = s->closing;
	s->closing = NULL;
	while (h != NULL) {
		uv_handle_t *next = h->next_closing;
		s->handles--;
		if (h->close_cb != NULL)
			h->close_cb(h);
		h = next;
	}
}

/* ---- a turn ---- */

static void run_timer(struct sim_loop *s)
{
	if (s->timer == NULL || s->timer_at > s->ms)
		return;
	uv_timer_t *t = s->timer;
	s->timer = NULL;
	t->timer_cb(t);
}

/* When the loop has to wake at the latest; 0: at once. */
static uint64_t wait_until(const uv_loop_t *l, struct sim_loop *s, bool waits)
{
	bool now = !waits || l->stop_flag || s->closing != NULL || s->woken || !cgn_list_empty(&s->done) ||
		!cgn_list_empty(&s->signals) || has_events(s);
	if (now)
		return 0;
	return s->timer != NULL ? s->timer_at * WORLD_MS : UINT64_MAX;
}

static void loop_wait(uv_loop_t *l, struct sim_loop *s, bool waits)
{
	uint64_t until;
	while ((until = wait_until(l, s, waits)) != 0 && until > world.now) {
		s->waits = world.current;
		/* A timer is late now and then, as under load */
		bool in_time = fiber_wait(
			until == UINT64_MAX || !world_chance(20) ? until : until + world_draw(5 * WORLD_MS));
		s->waits = NULL;
		if (!in_time)
			break;
	}
	if (!waits || (until == 0 && world_chance(3)))
		fiber_yield(); /* A loop that polls lets others run */
}

/* Judge the turn that ends now and had done the work |before| when it began. */
static void turn_judge(uint64_t before)
{
	struct world_proc *p = this_proc();
	uint64_t work = world.current->work - before;
	p->longest = work > p->longest ? work : p->longest;
	if (work > TURN_MOST)
		world_fail(
			"a turn of a loop takes too long: %s made calls and moved KiB, %llu in all, before it waited again",
			p->name, (unsigned long long)work);
}

int __wrap_uv_run(uv_loop_t *l, uv_run_mode mode);
int __wrap_uv_run(uv_loop_t *l, uv_run_mode mode)
{
	struct sim_loop *s = sim_of(l);
	uint64_t began = world.current->work;
	do {
		__wrap_uv_update_time(l);
		run_timer(s);
		if (s->prepare != NULL)
			s->prepare->prepare_cb(s->prepare);
		turn_judge(began);
		loop_wait(l, s, mode != UV_RUN_NOWAIT);
		began = world.current->work;
		__wrap_uv_update_time(l);
		run_watchers(s);
		run_signals(s);
		if (s->woken && s->async != NULL) {
			s->woken = false;
			s->async->async_cb(s->async);
		}
		run_done(s);
		if (s->check != NULL)
			s->check->check_cb(s->check);
		run_closing(s);
		if (mode == UV_RUN_ONCE)
			run_timer(s);
	} while (mode == UV_RUN_DEFAULT && l->stop_flag == 0);
	turn_judge(began);
	l->stop_flag = 0;
	return s->handles > 0 || s->works > 0;
}
