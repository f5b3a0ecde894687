/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include <sys/socket.h>

#include <uv.h>

#include "io/os/loop/loop.h"

/* Each test runs twice: with loops that sleep at once, and with loops that poll first. */
static cgn_nsec poll_most;

static struct cgn_loop *loop_new(void)
{
	struct cgn_loop *l = NULL;
	assert_true(cgn_ok(cgn_loop_new(&l, NULL)));
	cgn_loop_poll(l, poll_most);
	return l;
}

/* ---- timers ---- */

#define TIMERS 5000
struct ticks {
	struct cgn_timer timer;
	unsigned id;
	cgn_nsec due;
};
static cgn_nsec last_due;
static unsigned fired, expected;

static void timer_tick(struct cgn_timer *t)
{
	struct ticks *k = CGN_CONTAINER(t, struct ticks, timer);
	assert_true(k->due >= last_due);              /* The earlier timer is first. */
	assert_true(cgn_loop_now(t->loop) >= k->due); /* No timer is early. */
	assert_true(t->at == 0);
	last_due = k->due;
	k->due = 0;
	if (++fired == expected)
		cgn_loop_stop(t->loop);
}

static void timers_fire_in_order_and_never_after_cancel(void **state)
{
	(void)state;
	struct cgn_loop *l = loop_new();
	struct ticks *k = calloc(TIMERS, sizeof(*k));
	assert_non_null(k);
	srand(7);
	fired = expected = 0;
	last_due = 0;
	for (unsigned i = 0; i < TIMERS; i++) {
		cgn_timer_init(&k[i].timer, l, timer_tick);
		cgn_timer_cancel(&k[i].timer); /* Cancelling an unarmed timer is safe. */
		cgn_timer_set(&k[i].timer, (cgn_nsec)(rand() % 30000) * CGN_USEC);
	}
	for (unsigned i = 0; i < TIMERS; i++) {
		if (i % 3 == 0)
			cgn_timer_cancel(&k[i].timer);
		if (i % 3 == 1)
			cgn_timer_set(&k[i].timer, (cgn_nsec)(rand() % 30000) * CGN_USEC);
		k[i].due = k[i].timer.at;
		expected += k[i].due != 0;
	}
	cgn_loop_run(l);
	assert_int_equal(fired, expected);
	for (unsigned i = 0; i < TIMERS; i++)
		assert_true(k[i].due == 0);
	cgn_loop_free(&l);
	free(k);
}

static struct cgn_timer again_timer, stop_timer;
static unsigned again_count;
static void timer_again(struct cgn_timer *t)
{
	again_count++;
	cgn_timer_set(t, 0); /* A zero delay must not starve the loop's other work. */
}
static void stop_soon(struct cgn_timer *t)
{
	if (again_count > 1)
		cgn_loop_stop(t->loop);
	/* The process was suspended for a while, and both timers were due at once. */
	else
		cgn_timer_set(t, CGN_MSEC);
}

static void a_timer_that_sets_itself_starves_no_other_work(void **state)
{
	(void)state;
	struct cgn_loop *l = loop_new();
	cgn_timer_init(&again_timer, l, timer_again);
	cgn_timer_init(&stop_timer, l, stop_soon);
	cgn_timer_set(&again_timer, 0);
	cgn_timer_set(&stop_timer, 5 * CGN_MSEC);
	again_count = 0;
	cgn_loop_run(l);
	assert_true(again_count > 1);
	cgn_timer_cancel(&again_timer);
	cgn_loop_free(&l);
}

static cgn_nsec stood_before, stood_after, stood_for;
static void timer_stands(struct cgn_timer *t)
{
	stood_before = cgn_loop_listened(t->loop);
	cgn_nsec began = cgn_clock_now();
	(void)usleep(300000); /* The other timer is due meanwhile. */
	stood_for = cgn_clock_now() - began;
}
static void timer_late(struct cgn_timer *t)
{
	stood_after = cgn_loop_listened(t->loop);
	cgn_loop_stop(t->loop);
}

static void a_loop_that_stood_still_did_not_listen(void **state)
{
	(void)state;
	struct cgn_loop *l = loop_new();
	struct cgn_timer standing, late;
	cgn_timer_init(&standing, l, timer_stands);
	cgn_timer_init(&late, l, timer_late);
	cgn_timer_set(&standing, 0);
	cgn_timer_set(&late, 50 * CGN_MSEC);
	assert_true(cgn_loop_listened(l) == cgn_loop_now(l));
	cgn_loop_run(l);
	/* The 50 ms before the second timer was due count, and the time after that does not. */
	assert_true(stood_after - stood_before + 200 * CGN_MSEC < stood_for);
	assert_true(cgn_loop_now(l) - cgn_loop_listened(l) > 200 * CGN_MSEC);
	cgn_loop_free(&l);
}

/* ---- hooks, graves ---- */

static struct cgn_loop *hook_loop;
static struct cgn_hook hook_a, hook_b, hook_never;
static char trail[16];
static size_t trail_len;
struct corpse {
	struct cgn_grave grave;
	bool *gone;
};

static void corpse_release(struct cgn_grave *g)
{
	struct corpse *c = CGN_CONTAINER(g, struct corpse, grave);
	*c->gone = true;
	free(c);
}
static bool corpse_gone;
static struct corpse *corpse;
static void run_a(struct cgn_hook *h)
{
	(void)h;
	trail[trail_len++] = 'a';
	assert_false(corpse_gone); /* Still the same turn: the corpse is not freed. */
	cgn_loop_defer(hook_loop, &hook_b);
	cgn_loop_defer(hook_loop, &hook_b);
}
static void run_b(struct cgn_hook *h)
{
	(void)h;
	trail[trail_len++] = 'b';
}
static void queue_hooks(struct cgn_timer *t)
{
	(void)t;
	cgn_loop_defer(hook_loop, &hook_never);
	cgn_loop_defer(hook_loop, &hook_a);
	cgn_loop_defer(hook_loop, &hook_a);
	cgn_hook_drop(&hook_never);
	corpse = malloc(sizeof(*corpse));
	assert_non_null(corpse);
	corpse->gone = &corpse_gone;
	cgn_loop_bury(hook_loop, &corpse->grave, corpse_release);
}
static void check_hooks(struct cgn_timer *t)
{
	trail[trail_len] = '\0';
	assert_string_equal(trail, "ab");
	assert_true(corpse_gone);
	cgn_loop_stop(t->loop);
}

static void hooks_run_once_before_sleep_and_graves_after(void **state)
{
	(void)state;
	struct cgn_timer first, second;
	hook_loop = loop_new();
	trail_len = 0;
	corpse_gone = false;
	cgn_hook_init(&hook_a, run_a);
	cgn_hook_init(&hook_b, run_b);
	cgn_hook_init(&hook_never, run_a);
	cgn_timer_init(&first, hook_loop, queue_hooks);
	cgn_timer_init(&second, hook_loop, check_hooks);
	cgn_timer_set(&first, CGN_MSEC);
	cgn_timer_set(&second, 20 * CGN_MSEC);
	cgn_loop_run(hook_loop);
	cgn_loop_free(&hook_loop);
}

static unsigned exits;
static void on_exit_hook(struct cgn_hook *h)
{
	(void)h;
	exits++;
}

static void exit_hooks_run_once(void **state)
{
	(void)state;
	struct cgn_loop *l = loop_new();
	struct cgn_hook kept, dropped, late;
	exits = 0;
	cgn_hook_init(&kept, on_exit_hook);
	cgn_hook_init(&dropped, on_exit_hook);
	cgn_hook_init(&late, on_exit_hook);
	cgn_loop_at_exit(l, &kept);
	cgn_loop_at_exit(l, &dropped);
	cgn_hook_drop(&dropped);
	cgn_loop_stop(l); /* Before run: run returns at once. */
	cgn_loop_run(l);
	assert_int_equal(exits, 1);
	cgn_loop_at_exit(l, &late);
	cgn_loop_free(&l);
	assert_int_equal(exits, 2);
	assert_null(l);
	cgn_loop_free(&l);
}

/* ---- posts ---- */

#define POSTERS 4
#define POSTS   20000
struct note {
	struct cgn_post post;
	unsigned poster, seq;
};
static unsigned next_seq[POSTERS];
static unsigned delivered;
static struct cgn_loop *post_loop;

static void on_note(struct cgn_loop *l, struct cgn_post *p)
{
	struct note *n = CGN_CONTAINER(p, struct note, post);
	assert_int_equal(n->seq, next_seq[n->poster]++); /* Posts arrive in the order of their poster. */
	free(n);
	if (++delivered == POSTERS * POSTS)
		cgn_loop_stop(l);
}

static void *poster_run(void *arg)
{
	unsigned id = *(unsigned *)arg;
	for (unsigned i = 0; i < POSTS; i++) {
		struct note *n = malloc(sizeof(*n));
		CGN_MUST(n != NULL);
		n->poster = id;
		n->seq = i;
		cgn_loop_post(post_loop, &n->post, on_note);
	}
	return NULL;
}

static void posts_from_many_threads_arrive_in_order(void **state)
{
	(void)state;
	pthread_t threads[POSTERS];
	unsigned ids[POSTERS];
	post_loop = loop_new();
	delivered = 0;
	memset(next_seq, 0, sizeof next_seq);
	assert_true(cgn_ok(cgn_loop_start_thread(post_loop, "a-rather-long-thread-name", NULL)));
	for (unsigned i = 0; i < POSTERS; i++) {
		ids[i] = i;
		assert_int_equal(pthread_create(&threads[i], NULL, poster_run, &ids[i]), 0);
	}
	for (unsigned i = 0; i < POSTERS; i++)
		pthread_join(threads[i], NULL);
	cgn_loop_join(post_loop);
	assert_int_equal(delivered, POSTERS * POSTS);
	cgn_loop_free(&post_loop);
}

/* Two loops throw a ball: one loop writes it and the other reads it, and only the post orders the
 * accesses. */
struct ball {
	struct cgn_post post;
	struct cgn_loop *loops[2];
	unsigned throws, side;
};
static void on_ball(struct cgn_loop *l, struct cgn_post *p)
{
	struct ball *b = CGN_CONTAINER(p, struct ball, post);
	CGN_MUST(l == b->loops[b->side]);
	if (++b->throws == 20000) {
		cgn_loop_stop(b->loops[0]);
		cgn_loop_stop(b->loops[1]);
		return;
	}
	b->side ^= 1;
	cgn_loop_post(b->loops[b->side], &b->post, on_ball);
}

static void two_loops_pass_a_message_back_and_forth(void **state)
{
	(void)state;
	struct ball b = {.loops = {loop_new(), loop_new()}};
	cgn_loop_post(b.loops[0], &b.post, on_ball);
	assert_true(cgn_ok(cgn_loop_start_thread(b.loops[0], "left", NULL)));
	assert_true(cgn_ok(cgn_loop_start_thread(b.loops[1], "right", NULL)));
	cgn_loop_join(b.loops[0]);
	cgn_loop_join(b.loops[1]);
	assert_int_equal(b.throws, 20000);
	cgn_loop_free(&b.loops[0]);
	cgn_loop_free(&b.loops[1]);
}

/* The same over sockets. One socket is watched from the middle of a turn on, so libuv tells the kernel of it
 * later. */
struct rally {
	struct cgn_loop *loop;
	int fds[2];
	uv_poll_t ends[2];
	struct cgn_timer serve;
	struct cgn_hook watch;
	unsigned strokes;
	cgn_nsec struck_at;
};

static void rally_strike(struct rally *r, int fd)
{
	r->struck_at = cgn_clock_now();
	CGN_MUST(write(fd, "o", 1) == 1);
}

static void on_ready(uv_poll_t *h, int status, int events)
{
	struct rally *r = h->data;
	int fd = r->fds[h == &r->ends[1]];
	char c;
	CGN_MUST(status == 0 && events == UV_READABLE);
	CGN_MUST(read(fd, &c, 1) == 1);
	CGN_MUST(cgn_loop_now(r->loop) >= r->struck_at); /* The time is not older than what woke the loop. */
	if (++r->strokes == 2000)
		cgn_loop_stop(r->loop);
	else if (r->strokes % 100 == 0) /* A timer for the next turn, set outside a timer callback. */
		cgn_timer_set(&r->serve, CGN_MSEC);
	else
		rally_strike(r, fd);
}

static void on_serve(struct cgn_timer *t)
{
	struct rally *r = CGN_CONTAINER(t, struct rally, serve);
	rally_strike(r, r->fds[0]);
	if (r->strokes == 0)
		cgn_loop_defer(r->loop, &r->watch);
}

static void on_watch(struct cgn_hook *h)
{
	struct rally *r = CGN_CONTAINER(h, struct rally, watch);
	CGN_MUST(uv_poll_start(&r->ends[1], UV_READABLE, on_ready) == 0);
}

static void what_is_watched_and_set_in_a_turn_counts_at_once(void **state)
{
	(void)state;
	struct rally r = {.loop = loop_new()};
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, r.fds), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(uv_poll_init(cgn_loop_uv(r.loop), &r.ends[i], r.fds[i]), 0);
		r.ends[i].data = &r;
	}
	assert_int_equal(uv_poll_start(&r.ends[0], UV_READABLE, on_ready), 0);
	cgn_hook_init(&r.watch, on_watch);
	cgn_timer_init(&r.serve, r.loop, on_serve);
	cgn_timer_set(&r.serve, CGN_MSEC);
	cgn_loop_run(r.loop);
	assert_int_equal(r.strokes, 2000);
	for (int i = 0; i < 2; i++)
		uv_close((uv_handle_t *)&r.ends[i], NULL);
	cgn_loop_free(&r.loop);
	close(r.fds[0]);
	close(r.fds[1]);
}

static unsigned late_posts;
static void on_late(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	late_posts++;
	free(CGN_CONTAINER(p, struct note, post));
}

static void a_post_to_an_ended_loop_still_runs(void **state)
{
	(void)state;
	struct cgn_loop *l = loop_new();
	late_posts = 0;
	cgn_loop_stop(l);
	cgn_loop_run(l);
	for (int i = 0; i < 3; i++) {
		struct note *n = malloc(sizeof(*n));
		assert_non_null(n);
		cgn_loop_post(l, &n->post, on_late);
	}
	cgn_loop_free(&l);
	assert_int_equal(late_posts, 3);
}

/* ---- pool, signals, the rest ---- */

struct task {
	pthread_t worker, loop;
	struct cgn_loop *l;
	bool stop;
	atomic_uint done;
};
static void task_work(void *arg)
{
	struct task *t = arg;
	t->worker = pthread_self();
	usleep(1000);
}
static void task_done(void *arg)
{
	struct task *t = arg;
	assert_true(pthread_equal(pthread_self(), t->loop));
	assert_false(pthread_equal(pthread_self(), t->worker));
	t->done++;
	if (t->stop)
		cgn_loop_stop(t->l);
}

static void work_runs_elsewhere_and_comes_home(void **state)
{
	(void)state;
	struct task t = {.loop = pthread_self(), .l = loop_new(), .stop = true};
	cgn_loop_work(t.l, task_work, task_done, &t);
	cgn_loop_run(t.l);
	assert_int_equal(t.done, 1);
	t.stop = false; /* The free waits for the jobs on the pool. */
	cgn_loop_work(t.l, task_work, task_done, &t);
	cgn_loop_free(&t.l);
	assert_int_equal(t.done, 2);
}

struct write_turn {
	_Atomic int running;
	_Atomic bool together;
	int order[3], n, id;
	struct write_turn *all;
	struct cgn_loop *l;
};

static void turn_work(void *arg)
{
	struct write_turn *t = ((struct write_turn *)arg)->all;
	if (atomic_fetch_add(&t->running, 1) != 0)
		atomic_store(&t->together, true);
	for (int i = 0; i < 100; i++) /* Give another thread of the pool the time to begin. */
		(void)sched_yield();
	atomic_fetch_sub(&t->running, 1);
}

static void turn_done(void *arg)
{
	struct write_turn *one = arg, *t = one->all;
	t->order[t->n++] = one->id;
	if (t->n == 3)
		cgn_loop_stop(t->l);
}

static void writes_run_one_after_the_other(void **state)
{
	(void)state;
	struct write_turn all = {.l = loop_new()}, one[3];
	for (int i = 0; i < 3; i++) {
		one[i] = (struct write_turn){.id = i, .all = &all};
		cgn_loop_write(all.l, turn_work, turn_done, &one[i]);
	}
	cgn_loop_run(all.l);
	assert_false(atomic_load(&all.together));
	assert_int_equal(all.n, 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(all.order[i], i);
	cgn_loop_free(&all.l);
}

static int signal_seen;
static void on_signal(void *arg, int signo)
{
	signal_seen = signo;
	cgn_loop_stop(arg);
}

static void signals_reach_the_loop(void **state)
{
	(void)state;
	struct cgn_loop *l = loop_new();
	signal_seen = 0;
	assert_true(cgn_ok(cgn_loop_signal(l, SIGUSR1, on_signal, l, NULL)));
	kill(getpid(), SIGUSR1);
	cgn_loop_run(l);
	assert_int_equal(signal_seen, SIGUSR1);
	struct cgn_err err = {0};
	assert_false(cgn_ok(cgn_loop_signal(l, SIGKILL, on_signal, l, &err)));
	assert_int_equal(err.code, CGN_UNAVAILABLE);
	cgn_loop_free(&l);
}

static void a_closing_loop_drops_signals(void **state)
{
	(void)state;
	struct cgn_loop *l = loop_new();
	signal_seen = 0;
	assert_true(cgn_ok(cgn_loop_signal(l, SIGUSR1, on_signal, l, NULL)));
	assert_int_equal(raise(SIGUSR1), 0);
	cgn_loop_close(&l);
	assert_int_equal(signal_seen, 0);
}

static void clock_and_randomness(void **state)
{
	(void)state;
	struct cgn_loop *l = loop_new();
	cgn_nsec before = cgn_clock_now();
	assert_true(cgn_clock_now() >= before);
	assert_true(cgn_clock_wall_ms() > 1600000000000U);
	assert_true(cgn_loop_now(l) > 0);
	uint8_t a[600] = {0}, b[600] = {0};
	cgn_random(a, sizeof a);
	cgn_random(b, sizeof b);
	assert_memory_not_equal(a, b, sizeof a);
	cgn_loop_scratch(l)[CGN_LOOP_SCRATCH - 1] = 1;
	cgn_loop_free(&l);
}

static int poll_first(void **state)
{
	(void)state;
	poll_most = 200 * CGN_USEC;
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(timers_fire_in_order_and_never_after_cancel),
		cmocka_unit_test(a_loop_that_stood_still_did_not_listen),
		cmocka_unit_test(a_timer_that_sets_itself_starves_no_other_work),
		cmocka_unit_test(hooks_run_once_before_sleep_and_graves_after),
		cmocka_unit_test(exit_hooks_run_once),
		cmocka_unit_test(posts_from_many_threads_arrive_in_order),
		cmocka_unit_test(two_loops_pass_a_message_back_and_forth),
		cmocka_unit_test(what_is_watched_and_set_in_a_turn_counts_at_once),
		cmocka_unit_test(a_post_to_an_ended_loop_still_runs),
		cmocka_unit_test(work_runs_elsewhere_and_comes_home),
		cmocka_unit_test(writes_run_one_after_the_other),
		cmocka_unit_test(signals_reach_the_loop),
		cmocka_unit_test(a_closing_loop_drops_signals),
		cmocka_unit_test(clock_and_randomness),
	};
	int failed = cmocka_run_group_tests_name("asleep", tests, NULL, NULL);
	return failed + cmocka_run_group_tests_name("polling", tests, poll_first, NULL);
}
