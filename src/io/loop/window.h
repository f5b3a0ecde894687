/* SPDX-License-Identifier: Apache-2.0 */
/* window: how long to look for events before a wait gives the processor away. Pure: the time is an argument,
 * nanoseconds of any clock.
 *
 * To end a wait that blocked costs its waker an interrupt to another processor, and the one that waits the
 * way out of a halt, which in a virtual machine leads through the host: 20 to 40 us where the answer took 10.
 * So waits that turn out short are polled, as KVM polls before it halts a processor. The window is 0 at
 * first. A wait that blocked and was short opens it to twice that wait, never above |most|; two long ones in
 * a row close it. Short is what took twice |most| or less, for the wake-up is in it.
 *
 * What it costs: polling that found nothing, and time that others ran while it polled, are paid from a purse,
 * into which comes one part in WINDOW_SHARE of the time that passes, and a quarter of |most| with each event
 * that polling found; it holds WINDOW_PURSE times |most|. So who is idle polls never; a burst's end costs two
 * windows; and however waits fall, what is polled in vain is at most a 32nd of the time, a quarter of |most|
 * for each event found, and five times |most| once. Where others want the processor, polling rests 32 times
 * as long as they had it, WINDOW_DEBT times 32 at most. */
#pragma once
#include "base/core/err.h"

#define WINDOW_PURSE 4
#define WINDOW_SHARE 32
#define WINDOW_DEBT  (10 * CGN_MSEC)

struct window {
	cgn_nsec most; /* 0: never poll */
	cgn_nsec size;
	cgn_nsec paid; /* until when time has been credited */
	int64_t purse;
	unsigned missed; /* long waits in a row */
};
void window_init(struct window *w, cgn_nsec most, cgn_nsec now);
/* How long the wait that begins |now| may poll; 0: not at all. */
cgn_nsec window_open(struct window *w, cgn_nsec now);
/* Then one of the two. An event was there when it had polled for |polled|. */
void window_found(struct window *w, cgn_nsec polled);
/* There was none within |polled|, so it blocked; |waited| in all. */
void window_blocked(struct window *w, cgn_nsec polled, cgn_nsec waited);
