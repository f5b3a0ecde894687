/* SPDX-License-Identifier: Apache-2.0 */
/* Run a loop until a condition holds. Include after cmocka.h. */
#pragma once
#include "io/os/loop/loop.h"

struct world; /* Defined by the test. */

struct loop_wait {
	struct cgn_loop *loop;
	struct cgn_timer poll, patience;
	bool (*done)(struct world *w);
	struct world *world;
	bool late;
};

static void loop_wait_poll(struct cgn_timer *t)
{
	struct loop_wait *w = CGN_CONTAINER(t, struct loop_wait, poll);
	if (w->done(w->world))
		cgn_loop_stop(w->loop);
	else
		cgn_timer_set(t, CGN_MSEC);
}

static void loop_wait_late(struct cgn_timer *t)
{
	struct loop_wait *w = CGN_CONTAINER(t, struct loop_wait, patience);
	w->late = true;
	cgn_loop_stop(w->loop);
}

/* Run until |done|; fail after a minute. */
static inline void loop_until(struct cgn_loop *l, bool (*done)(struct world *w), struct world *world)
{
	struct loop_wait w = {.loop = l, .done = done, .world = world};
	cgn_timer_init(&w.poll, l, loop_wait_poll);
	cgn_timer_init(&w.patience, l, loop_wait_late);
	cgn_timer_set(&w.poll, 0);
	cgn_timer_set(&w.patience, 60 * CGN_SEC);
	cgn_loop_run(l);
	cgn_timer_cancel(&w.poll);
	cgn_timer_cancel(&w.patience);
	assert_false(w.late);
}
