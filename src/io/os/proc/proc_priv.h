/* SPDX-License-Identifier: Apache-2.0 */
/* proc, inside: the keeper and its messages; output cut into lines. */
#pragma once
#include "io/os/proc/proc.h"

/* The numbers stay: a keeper outlives its agent, and the next one may be of another version. */
enum keeper_kind {
	KEEPER_STARTED = 1, /* The program's process is about to exec; KEEPER_EXEC_FAILED may follow. */
	KEEPER_EXEC_FAILED,
	KEEPER_EXITED,
	KEEPER_STOP,  /* SIGTERM, then SIGKILL after the grace period */
	KEEPER_ENDED, /* The program has ended; its descendants are being killed, then KEEPER_EXITED */
	KEEPER_KILL,  /* SIGKILL at once */
	KEEPER_CARD, /* For a caller that is the new owner: struct keeper_card and the output's descriptors */
	KEEPER_BUSY, /* For a caller: the program has an owner, or is ending */
};
struct keeper_msg { /* A datagram of the control socket, in both directions. */
	int32_t kind;
	int32_t value; /* STARTED: pid; EXEC_FAILED: errno; ENDED, EXITED: wait status; STOP, KILL: 0. */
};
struct keeper_card {
	int32_t kind, program;
	uint64_t unread;
	char word[PROC_WORD_BYTES];
};

struct keeper_job {
	int control, out, err;  /* File descriptors. */
	int listen;             /* With a place: the socket for callers; else -1 */
	int out_read, err_read; /* With orphan_ms > 0: for the time without an owner; else -1. */
	int orphan_ms;
	struct keeper_card card;
	const char *file;
	char *const *argv, *const *envp;
	int grace_ms;
};
/* Run the keeper in the forked child of a process with threads: only async-signal-safe calls. */
_Noreturn void keeper_run(const struct keeper_job *job);

/* place.c: where a program is found again, PLACE.sock and PLACE.run. */
CGN_RC proc_place_listen(const char *place, int *out, struct cgn_err *err);
/* Write down the keeper, whose session the program's processes belong to. */
void proc_place_note(const char *place, pid_t keeper);
void proc_place_clear(const char *place); /* The program has ended. NULL: does nothing. */
/* Ask the keeper at |place| for its program. The descriptors are the control connection and the output. Errors as of
 * proc_adopt. */
CGN_RC proc_place_call(const char *place, struct keeper_card *card, int *control, int *out, int *err_fd,
	struct cgn_err *err);

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
