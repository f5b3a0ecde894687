/* SPDX-License-Identifier: Apache-2.0 */
/* proc: run a program and guarantee its end. Between the caller and the program stands a keeper, a small
 * forked process that holds nothing of the caller's. The keeper reaps everything that the program starts. It
 * kills all of it when the program ends, when it is told to, and when the caller dies, by kill -9 too; or it keeps the
 * program for a time (orphan_time), until a new owner adopts it. Linux only. Objects belong to their loop. */
#pragma once
#include <stdbool.h>
#include <sys/types.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "io/os/loop/loop.h"

#define PROC_LINE_BYTES 4096 /* Longest output line; the rest of a longer line is dropped. */
#define PROC_LINE_BURST 2000 /* Lines allowed in a burst. */
#define PROC_LINE_RATE  1000 /* Lines allowed per second; more are dropped and counted. */
#define PROC_WORD_BYTES 96

struct proc;

struct proc_exit {
	int exec_errno; /* Not 0: exec failed, and the program never ran. */
	int code;       /* Exit status; -1 when a signal ended the program. */
	int signal;     /* Signal that ended the program; 0 when it exited by itself. */
};

struct proc_ops {
	/* A line of stdout or stderr, without the newline; borrowed. |dropped| lines before it exceeded the
	 * rate. */
	void (*on_line)(void *user, bool is_stderr, struct cgn_str line, unsigned long dropped);
	/* The program has ended; its descendants are being killed, which can take seconds. All its output was
	 * given. May be NULL. */
	void (*on_ended)(void *user, const struct proc_exit *why);
	/* The last callback, called exactly once, after all output: the program and all its descendants are
	 * gone. The proc is freed when this returns. */
	void (*on_exit)(void *user, const struct proc_exit *why);
};

struct proc_cfg {
	const char *const *argv; /* NULL-terminated; argv[0] without a slash is looked up in PATH */
	/* "NAME=value" strings that override the caller's environment, NULL-terminated; may be NULL. */
	const char *const *env;
	cgn_nsec grace; /* Time from SIGTERM to SIGKILL; 0: 10 s, at most 1 h. */
	/* "FOLDER/NAME": the program is found again at FOLDER/NAME.sock and FOLDER/NAME.run by proc_adopt and
	 * proc_end_strays. NULL: never. */
	const char *place;
	/* With |place|: how long the program runs on without an owner. 0: it ends with the caller. */
	cgn_nsec orphan_time;
	const char *
		word; /* A word of the owner's that proc_adopt returns; shorter than PROC_WORD_BYTES. May be NULL. */
};
/* Start the program. Copies |cfg|; never calls back inline. CGN_NOT_FOUND: no such program (the message has
 * PATH). CGN_FORBIDDEN: it is not executable. Other codes: no processes, descriptors or memory left. */
CGN_RC proc_spawn(struct cgn_loop *l, const struct proc_cfg *cfg, const struct proc_ops *ops, void *user,
	struct proc **out, struct cgn_err *err);
struct proc_orphan {
	char word[PROC_WORD_BYTES]; /* As it was given to proc_spawn */
	uint64_t unread;            /* Bytes of output that came without an owner and are lost */
};
/* Take over the program at |place| whose owner has died. CGN_NOT_FOUND: there is none. CGN_CONFLICT: it has an owner, or
 * is ending. Waits at most a second for an answer. */
CGN_RC proc_adopt(struct cgn_loop *l, const char *place, const struct proc_ops *ops, void *user,
	struct proc **out, struct proc_orphan *orphan, struct cgn_err *err);
/* Kill the processes of the session of the program at |place| whose owner and keeper were killed. Returns
 * their number. Call after proc_adopt found none. */
size_t proc_end_strays(const char *place);
/* Return the program's pid; 0 before it is known and after the program has ended. */
pid_t proc_pid(const struct proc *p);
/* True when the program runs on for |orphan_time| if the caller dies: it was asked for, and the socket could be made. */
bool proc_outlives(const struct proc *p);
/* Send SIGTERM to the program's process group, and SIGKILL to all its descendants after the grace period;
 * on_exit follows. A second call does nothing. */
void proc_stop(struct proc *p);
/* Kill at once everything that still runs, wait for its end, and call back no more. NULL-safe. The memory is
 * freed in the loop's next turn. */
void proc_free(struct proc **take);
/* Write "exit status 1", "killed by SIGKILL" or "Exec format error" into |buf|, for logs. */
const char *proc_exit_text(const struct proc_exit *why, char *buf, size_t cap);
/* Find the file that argv[0] names: |name| itself when it has a slash, else the first executable in
 * |path_list| ("a:b:c"; NULL: empty). */
CGN_RC proc_find(const char *name, const char *path_list, char *out, size_t cap, struct cgn_err *err);

/* ---- place.c: where this process runs ---- */
/* Write a text that is the same in processes that share a kernel since its boot and a network namespace: there
 * 127.0.0.1 means the same to them. Containers share a kernel, but mostly not the network. False: not known. */
#define PROC_HOST_ID 104
bool proc_host_id(char *out, size_t size);
