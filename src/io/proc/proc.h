/* SPDX-License-Identifier: Apache-2.0 */
/* proc: run a program and be sure of its end. Between us and it stands a keeper, a tiny forked process that
 * holds nothing of ours: it is the reaper of everything that the program starts, ends all of it when the
 * program ends or when it is told to, and kills all of it when we die, by kill -9 too. Linux only. Objects
 * belong to their loop. */
#pragma once
#include <stdbool.h>
#include <sys/types.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "io/loop/loop.h"

#define PROC_LINE_BYTES 4096 /* of output; the rest of a longer line is dropped */
#define PROC_LINE_BURST 2000 /* lines at once ... */
#define PROC_LINE_RATE  100  /* ... and a second; more are dropped and counted */

struct proc;

struct proc_exit {
	int exec_errno; /* not 0: it never ran */
	int code;       /* exit status; -1 when a signal ended it */
	int signal;     /* 0 when it exited by itself */
};

struct proc_ops {
	/* A line of its stdout or stderr, without the newline; borrowed. |dropped| lines before it were over
	 * the rate. */
	void (*on_line)(void *user, bool is_stderr, struct cgn_str line, unsigned long dropped);
	/* Last word, exactly once, after all its output: it and all its descendants are gone, and so is the
	 * proc when this returns. */
	void (*on_exit)(void *user, const struct proc_exit *why);
};

struct proc_cfg {
	const char *const *argv; /* NULL-terminated; argv[0] without a slash is looked up in PATH */
	const char *const *env;  /* "NAME=value" over our own environment, NULL-terminated; may be NULL */
	cgn_nsec grace;          /* from SIGTERM to SIGKILL; 0: 10 s */
};
/* Copies what it needs. Never calls back inline. CGN_NOT_FOUND: no such program (the sentence has PATH);
 * CGN_FORBIDDEN: it may not be executed; others: out of processes, descriptors, memory. */
CGN_RC proc_spawn(struct cgn_loop *l, const struct proc_cfg *cfg, const struct proc_ops *ops, void *user,
	struct proc **out, struct cgn_err *err);
pid_t proc_pid(const struct proc *p); /* of the program; 0 until it is known and after it has gone */
/* SIGTERM to its process group, SIGKILL to all its descendants after the grace; on_exit follows. A second
 * call changes nothing. */
void proc_stop(struct proc *p);
/* No callback any more. What still runs is killed at once, all of it; waits for that. NULL-safe. The memory
 * goes with the loop's next turn. */
void proc_free(struct proc **take);
/* "exit status 1", "killed by SIGKILL", "Exec format error": for logs. */
const char *proc_exit_text(const struct proc_exit *why, char *buf, size_t cap);
/* The file that argv[0] names: itself when it has a slash, else the first executable of |path_list| ("a:b:c";
 * NULL: empty). */
CGN_RC proc_find(const char *name, const char *path_list, char *out, size_t cap, struct cgn_err *err);
