/* SPDX-License-Identifier: Apache-2.0 */
/* window: how long to look for events before a wait gives the processor away. Pure: the time is an argument,
 * in nanoseconds of any clock.
 *
 * Ending a blocked wait costs the waker an interrupt to another processor, and the waiter its way out of a
 * halt, which in a virtual machine leads through the host: 20 to 40 us where the answer took 10. Waits that
 * turn out short are therefore polled, as KVM polls before it halts a processor. The window starts at 0. A
 * short wait that blocked opens it to twice that wait, at most |most|; two long waits in a row close it. A
 * wait is short when it took at most twice |most|, because the wake-up is included.
 *
 * Cost: fruitless polling, and the time that other processes ran during polling, are paid from a purse. The
 * purse receives one part in WINDOW_SHARE of the time that passes, and a quarter of |most| for each event
 * that polling found; it holds at most WINDOW_PURSE times |most|. An idle loop therefore never polls, the end
 * of a burst costs two windows, and fruitless polling takes at most a 32nd of the time, plus a quarter of
 * |most| for each event found, plus five times |most| once. When other processes want the processor, polling
 * rests 32 times as long as they had it, at most WINDOW_DEBT times 32. */
#pragma once
#include "base/core/err.h"

#define WINDOW_PURSE 4
#define WINDOW_SHARE 32
#define WINDOW_DEBT  (10 * CGN_MSEC)

struct window {
	cgn_nsec most; /* Longest window; 0: never poll. */
	cgn_nsec size;
	cgn_nsec paid; /* Time up to which the purse was credited. */
	int64_t purse;
	unsigned missed; /* Number of long waits in a row. */
};
void window_init(struct window *w, cgn_nsec most, cgn_nsec now);
/* Return how long the wait that begins at |now| may poll; 0: not at all. Call window_found or window_blocked
 * when that wait ends. */
cgn_nsec window_open(struct window *w, cgn_nsec now);
/* Report an event that was found after polling for |polled|. */
void window_found(struct window *w, cgn_nsec polled);
/* Report that no event came within |polled|, so that the wait blocked; it took |waited| in all. */
void window_blocked(struct window *w, cgn_nsec polled, cgn_nsec waited);
