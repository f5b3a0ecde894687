/* SPDX-License-Identifier: Apache-2.0 */
/* sched: time, randomness, and what happens next. Of several fibers that could run, the seed chooses one, as a kernel
 * with enough processors might. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "world_priv.h"

#define STEP_MOST 4000 /* ns that a step of a fiber takes at most */

struct world world;
bool world_tells, world_logs;

/* ---- randomness: splitmix64 ---- */

static uint64_t random_next(void)
{
	uint64_t z = (world.random += UINT64_C(0x9e3779b97f4a7c15));
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

uint64_t world_draw(uint64_t n)
{
	return n > 1 ? random_next() % n : 0;
}

uint64_t world_stream(uint64_t stream)
{
	uint64_t before = world.random;
	world.random = stream;
	return before;
}

/* ---- the trace ---- */

void world_note(const char *what, uint64_t a, uint64_t b)
{
	uint64_t h = world.hash ^ world.now;
	for (; *what != '\0'; what++)
		h = (h ^ (uint8_t)*what) * UINT64_C(0x100000001b3);
	h = (h ^ a) * UINT64_C(0x9e3779b97f4a7c15);
	h = (h ^ (h >> 29) ^ b) * UINT64_C(0xbf58476d1ce4e5b9);
	world.hash = h ^ (h >> 32);
}

void world_tell(const char *format, ...)
{
	if (!world_tells)
		return;
	va_list ap;
	va_start(ap, format);
	printf("%10.6f  ", (double)world.now / 1e9);
	vprintf(format, ap);
	putchar('\n');
	va_end(ap);
}

void world_fail(const char *format, ...)
{
	va_list ap;
	world.current = NULL; /* The rest is the test program's own work */
	va_start(ap, format);
	printf("FAULT %.6f s: ", (double)world.now / 1e9);
	vprintf(format, ap);
	printf("\n");
	va_end(ap);
	fflush(stdout);
	_exit(3);
}

/* ---- events ---- */

static bool is_before(const struct event *a, const struct event *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void event_at(uint64_t at, void (*fn)(void *arg, uint64_t tag), void *arg, uint64_t tag)
{
	if (world.n_events == world.cap_events) {
		world.cap_events = world.cap_events > 0 ? 2 * world.cap_events : 1024;
		world.events = CGN_GROWN(world.events, world.cap_events);
	}
	struct event e = {.at = at > world.now ? at : world.now,
		.order = ++world.order,
		.fn = fn,
		.arg = arg,
		.tag = tag};
	size_t i = world.n_events++;
	for (; i > 0 && is_before(&e, &world.events[(i - 1) / 4]); i = (i - 1) / 4)
		world.events[i] = world.events[(i - 1) / 4];
	world.events[i] = e;
}

static struct event event_take(void)
{
	struct event first = world.events[0], last = world.events[--world.n_events];
	size_t i = 0, n = world.n_events;
	for (;;) {
		size_t best = 4 * i + 1;
		if (best >= n)
			break;
		for (size_t k = best + 1; k < best + 4 && k < n; k++)
			if (is_before(&world.events[k], &world.events[best]))
				best = k;
		if (!is_before(&world.events[best], &last))
			break;
		world.events[i] = world.events[best];
		i = best;
	}
	if (n > 0)
		world.events[i] = last;
	return first;
}

/* ---- the order of things ---- */

/* Return one of the fibers that are ready and whose process is not stopped; NULL: there is none. */
static struct fiber *fiber_pick(void)
{
	uint64_t skip = world_draw(world.n_ready < 8 ? world.n_ready : 8);
	struct fiber *found = NULL;
	cgn_list_each (l, &world.ready) {
		struct fiber *f = CGN_CONTAINER(l, struct fiber, link);
		if (f->proc->paused)
			continue;
		found = f;
		if (skip-- == 0)
			break;
	}
	return found;
}

static void fiber_step(struct fiber *f)
{
	cgn_list_drop(&f->link);
	world.n_ready--;
	world.steps++;
	world.now += 1 + world_draw(STEP_MOST);
	world_note("step", f->id, world.n_ready);
	proc_enter(f->proc);
	fiber_enter(f);
	if (f->state == FIBER_DEAD && f->stack != NULL && f->detached)
		fiber_free(f);
}

static void world_loop(void)
{
	while (!world.ended) {
		while (world.n_events > 0 && world.events[0].at <= world.now) {
			struct event e = event_take();
			e.fn(e.arg, e.tag);
		}
		struct fiber *f = world.n_ready > 0 ? fiber_pick() : NULL;
		if (f != NULL)
			fiber_step(f);
		else if (world.n_events > 0)
			world.now = world.events[0].at > world.now ? world.events[0].at : world.now;
		else
			world_fail("nothing will ever happen again: all threads wait without a limit");
	}
}

void world_begin(uint64_t seed)
{
	world = (struct world){.on = true, .random = seed, .hash = seed};
	world.wall_base = UINT64_C(1798761600) * WORLD_SEC; /* 2027-01-01 */
	cgn_list_init(&world.ready);
	cgn_list_init(&world.hosts);
	cgn_list_init(&world.procs);
}

struct body {
	void (*fn)(void *arg);
	void *arg;
};

static void *body_run(void *arg)
{
	struct body *b = arg;
	b->fn(b->arg);
	world.ended = true;
	return NULL;
}

void world_run(void (*fn)(void *arg), void *arg)
{
	static const char *const argv[] = {"scenario", NULL};
	struct body b = {fn, arg};
	struct world_proc *p = world_start(world_host_new("scenario"), "scenario", NULL, argv);
	(void)fiber_new(p, body_run, &b);
	world_loop();
}

static void *spawned_run(void *arg)
{
	struct body b = *(struct body *)arg;
	free(arg);
	b.fn(b.arg);
	return NULL;
}

void world_spawn(void (*fn)(void *arg), void *arg)
{
	struct body *b = CGN_NEW(struct body);
	*b = (struct body){fn, arg};
	fiber_new(this_proc(), spawned_run, b)->detached = true;
}

void world_sleep(uint64_t ns)
{
	(void)fiber_wait(world.now + ns);
}

uint64_t world_now(void)
{
	return world.now;
}

uint64_t world_steps(void)
{
	return world.steps;
}

uint64_t world_hash(void)
{
	return world.hash;
}
