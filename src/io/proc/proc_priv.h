/* SPDX-License-Identifier: Apache-2.0 */
/* proc, inside: the keeper and its messages; output cut into lines. */
#pragma once
#include "io/proc/proc.h"

enum keeper_kind { KEEPER_STARTED = 1, KEEPER_EXEC_FAILED, KEEPER_EXITED, KEEPER_STOP };
struct keeper_msg { /* one datagram of the control socket, both ways */
	int32_t kind;
	int32_t value; /* STARTED: pid · EXEC_FAILED: errno · EXITED: wait status · STOP: 0 */
};

struct keeper_job {
	int control, out, err; /* descriptors */
	const char *file;
	char *const *argv, *const *envp;
	int grace_ms;
};
/* The life of the keeper, in the forked child of a process with threads: async-signal-safe calls only. */
_Noreturn void keeper_run(const struct keeper_job *job);

/* Lines of one stream. */
struct proc_lines {
	char buf[PROC_LINE_BYTES];
	size_t n;
	bool cut; /* the line is full: skip to its end */
};
struct proc_rate {             /* shared by both streams of a process */
	cgn_nsec full_at;      /* the bucket is full again then */
	unsigned long dropped; /* since the last line that passed */
};
typedef void (*proc_line_fn)(void *user, struct cgn_str line, unsigned long dropped);
void proc_lines_feed(struct proc_lines *l, struct proc_rate *r, const void *p, size_t n, cgn_nsec now,
	proc_line_fn fn, void *user);
void proc_lines_end(struct proc_lines *l, struct proc_rate *r, cgn_nsec now, proc_line_fn fn,
	void *user); /* a last line without a newline */
