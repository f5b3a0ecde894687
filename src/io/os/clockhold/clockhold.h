/* SPDX-License-Identifier: Apache-2.0 */
/* clockhold: limit the SM clocks of GPUs, and lift the limits whatever happens to the caller. A helper, a small process of
 * its own, makes all calls of the library. It lifts the limits when the caller ends in any way (its end of a socket
 * closes, by kill -9 too), and notes each limit in a file before it sets it: the next helper with this file lifts what a
 * helper that was killed has left. Only limits of that file are ever lifted. One loop, its thread. Memory: 16 KB and the
 * socket's buffer; the helper some 2 MB and the library's. */
#pragma once
#include <sys/types.h>

#include "base/core/err.h"
#include "io/os/loop/loop.h"
#include "io/os/nvml/clocks.h"
#include "io/os/nvml/nvml.h"

#define CLOCKHOLD_ARG "--hold-clocks" /* First argument of the helper */

struct clockhold;
/* The result of an order. */
struct clockhold_done {
	char uuid[96];
	uint32_t high_mhz; /* As ordered; 0: the limit was to be lifted */
	enum cgn_code
		code; /* FINE. FORBIDDEN: more rights are needed. CONFLICT: a limit of another owner is there. STORAGE: it
			     * could not be noted. NOT_FOUND: no such GPU now. UNAVAILABLE: any other failure */
	char why[200];
};
struct clockhold_ops {
	/* A GPU of the list, before |ready|. */
	void (*gpu)(void *user, const struct nvml_clock_gpu *gpu);
	/* The helper takes orders. It has lifted |lifted| limits that an earlier one had left; |failed| others are still
	 * there, and |why| says why. */
	void (*ready)(void *user, uint32_t lifted, uint32_t failed, const char *why);
	void (*waiting)(void *user); /* Another helper has the file; this one waits for its end. */
	void (*done)(void *user, const struct clockhold_done *d);
	/* The helper has ended; the last call. The caller frees |h| then or later. |code|: FINE after clockhold_end, else as
	 * nvml_clocks_open, STORAGE for the file, or UNAVAILABLE for a helper that was killed. */
	void (*ended)(void *user, enum cgn_code code, const char *why);
};
struct clockhold_cfg {
	const char *library, *gpus; /* As in struct nvml_cfg */
	const char *record;         /* The file; its folder exists */
	const char *
		log_format; /* "auto", "human" or "json": the helper logs to stderr when the caller is gone */
};
/* Start the helper: this program again (/proc/self/exe), whose main calls clockhold_main. Never calls back inline. |*cfg| is
 * not kept. */
CGN_RC clockhold_open(struct cgn_loop *l, const struct clockhold_cfg *cfg, const struct clockhold_ops *ops,
	void *user, struct clockhold **out, struct cgn_err *err);
/* Order a limit, and answer with |done|. |take_over|: also where another owner has set one, as far as the driver tells.
 * False: the helper takes no order now; try again. */
bool clockhold_lock(struct clockhold *h, const char *uuid, uint32_t low_mhz, uint32_t high_mhz,
	bool take_over);
bool clockhold_reset(struct clockhold *h, const char *uuid); /* The same, to lift the limit. */
void clockhold_end(struct clockhold *h);                     /* Lift all limits; |ended| follows. */
pid_t clockhold_pid(const struct clockhold *h);
/* Lift all limits, and wait up to |most| for it; call back no more. NULL-safe. */
void clockhold_free(struct clockhold **take, cgn_nsec most);
/* Is there a limit that is noted in |record|? */
bool clockhold_recorded(const char *record);
/* The helper's main. Call it first in main(), when argv[1] is CLOCKHOLD_ARG. Returns the exit status. */
int clockhold_main(int argc, char **argv);
