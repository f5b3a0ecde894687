/* SPDX-License-Identifier: Apache-2.0 */
#include "io/os/loop/window.h"

static void purse_earn(struct window *w, cgn_nsec much)
{
	w->purse += (int64_t)much;
	if (w->purse > (int64_t)(WINDOW_PURSE * w->most))
		w->purse = (int64_t)(WINDOW_PURSE * w->most);
}

static void purse_spend(struct window *w, cgn_nsec much)
{
	w->purse -= (int64_t)(much < WINDOW_DEBT ? much : WINDOW_DEBT);
	if (w->purse < -(int64_t)WINDOW_DEBT)
		w->purse = -(int64_t)WINDOW_DEBT;
}

void window_init(struct window *w, cgn_nsec most, cgn_nsec now)
{
	*w = (struct window){.most = most, .purse = (int64_t)(WINDOW_PURSE * most), .paid = now};
}

cgn_nsec window_open(struct window *w, cgn_nsec now)
{
	if (w->most > 0 && now > w->paid) {
		purse_earn(w, cgn_since(now, w->paid) / WINDOW_SHARE);
		w->paid = now;
	}
	return w->purse >= (int64_t)w->size ? w->size : 0;
}

void window_found(struct window *w, cgn_nsec polled)
{
	w->missed = 0;
	/* A single look is shorter than that: another process had the processor. */
	if (polled > w->size + w->most)
		purse_spend(w, polled - w->size);
	else
		purse_earn(w, w->most / 4);
}

void window_blocked(struct window *w, cgn_nsec polled, cgn_nsec waited)
{
	purse_spend(w, polled);
	/* A wait that blocked was longer than necessary by the wake-up time. */
	if (waited > 2 * w->most) {
		if (++w->missed == 2)
			w->size = 0;
		return;
	}
	w->missed = 0;
	if (w->size < 2 * waited)
		w->size = 2 * waited < w->most ? 2 * waited : w->most;
}
