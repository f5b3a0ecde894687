/* SPDX-License-Identifier: Apache-2.0 */
/* proc, inside: the keeper and its messages; output cut into lines. */
#pragma once
#include "io/proc/proc.h"

enum keeper_kind { KEEPER_STARTED = 1, KEEPER_EXEC_FAILED, KEEPER_EXITED, KEEPER_STOP };
struct keeper_msg { /* A datagram of the control socket, in both directions. */
	int32_t kind;
	int32_t value; /* STARTED: pid; EXEC_FAILED: errno; EXITED: wait status; STOP: 0. */
};

struct keeper_job {
	int control, out, err; /* File descriptors. */
	const char *file;
	char *const *argv, *const *envp;
	int grace_ms;
};
/* Run the keeper in the forked child of a process with threads: only async-signal-safe calls. */
_Noreturn void keeper_run(const struct keeper_job *job);

/* The partial line of one stream. */
struct proc_lines {
	char buf[PROC_LINE_BYTES];
	size_t n;
	bool cut; /* The line is full: skip to its end. */
};
struct proc_rate {             /* Shared by both streams of a process. */
	cgn_nsec full_at;      /* Instant at which the whole burst is available again. */
	unsigned long dropped; /* Lines dropped since the last line that passed. */
};
typedef void (*proc_line_fn)(void *user, struct cgn_str line, unsigned long dropped);
void proc_lines_feed(struct proc_lines *l, struct proc_rate *r, const void *p, size_t n, cgn_nsec now,
	proc_line_fn fn, void *user);
void proc_lines_end(struct proc_lines *l, struct proc_rate *r, cgn_nsec now, proc_line_fn fn,
	void *user); /* Report a last line that has no newline. */
