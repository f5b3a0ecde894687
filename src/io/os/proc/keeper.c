/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper process: waits for the program, for an order, for its owner's death, and then for a new owner. It was
 * forked from a process with threads, so it allocates nothing. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "io/os/proc/proc_priv.h"

enum {
	FD_CONTROL = 3,
	FD_OUT,
	FD_ERR,
	FD_LISTEN,
	FD_OUT_READ, /* The other ends of FD_OUT and FD_ERR, for the time without an owner */
	FD_ERR_READ,
	FD_EXEC_R,
	FD_EXEC_W,
	FD_CHILD_SIGNAL,
};
#define FD_SAFE 64 /* Above all job descriptors, for moving them. */

struct keeper {
	pid_t program;
	int status; /* Wait status of the program, valid once |gone|. */
	bool started, gone, stopping;
	bool orphan;      /* The owner has died, and another one may come until |until_ms| */
	int64_t until_ms; /* Orphan: end of the wait. Stopping: when all is killed */
	uint64_t unread;  /* Bytes of output that came without an owner, and were dropped */
	bool closed[2];   /* The program has closed this output */
	bool listens;
	int grace_ms, orphan_ms;
	struct keeper_card card;
};

static int64_t now_ms(void)
{
	struct timespec ts;
	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void owner_tell(enum keeper_kind kind, int value)
{
	struct keeper_msg m = {.kind = (int32_t)kind, .value = value};
	(void)!send(FD_CONTROL, &m, sizeof m, MSG_NOSIGNAL);
}

/* Move the job's descriptors to known numbers and close all others: neither listening sockets nor connections
 * may outlive their owner here. */
static void settle_descriptors(const struct keeper_job *job)
{
	const int from[] = {job->control, job->out, job->err, job->listen, job->out_read, job->err_read};
	int safe[CGN_COUNT(from)], null = open("/dev/null", O_RDWR);
	null = fcntl(null, F_DUPFD, FD_SAFE);
	if (null < 0)
		_exit(126);
	for (size_t i = 0; i < CGN_COUNT(from); i++)
		if ((safe[i] = from[i] >= 0 ? fcntl(from[i], F_DUPFD, FD_SAFE) : null) < 0)
			_exit(126);
	for (int fd = 0; fd <= 2; fd++)
		(void)dup2(null, fd);
	for (size_t i = 0; i < CGN_COUNT(from); i++)
		(void)dup2(safe[i], FD_CONTROL + (int)i);
	(void)syscall(SYS_close_range, (unsigned)FD_EXEC_R, ~0U, 0U);
}

static void default_signals(void)
{
	struct sigaction plain = {.sa_handler = SIG_DFL};
	sigset_t none;
	for (int s = 1; s < _NSIG; s++)
		(void)sigaction(s, &plain, NULL);
	(void)sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Runs in the program's process, up to exec. */
_Noreturn static void become(const struct keeper_job *job, pid_t keeper)
{
	(void)setpgid(0, 0);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != keeper) /* The parent died before the line above. */
		_exit(126);
	(void)dup2(FD_OUT, 1);
	(void)dup2(FD_ERR, 2);
	/* Sent before the exec: the owner knows the pid before the program can do anything. */
	owner_tell(KEEPER_STARTED, (int)getpid());
	(void)fcntl(FD_EXEC_W, F_SETFD, FD_CLOEXEC);
	(void)syscall(SYS_close_range, (unsigned)FD_CONTROL, (unsigned)FD_EXEC_R, 0U);
	(void)syscall(SYS_close_range, (unsigned)FD_CHILD_SIGNAL, ~0U, 0U);
	default_signals();
	(void)execve(job->file, job->argv, job->envp);
	int why = errno;
	(void)!write(FD_EXEC_W, &why, sizeof why);
	_exit(127);
}

/* Read the parent's pid from /proc/PID/stat. It stands behind the name, which may hold anything but ends with
 * the last ')'. */
static pid_t parent_in_stat(char *text, ssize_t n)
{
	ssize_t at = n - 1;
	long ppid = 0;
	while (at > 0 && text[at] != ')')
		at--;
	for (at += 4; at > 3 && at < n && text[at] >= '0' && text[at] <= '9'; at++)
		ppid = ppid * 10 + (text[at] - '0');
	return (pid_t)ppid;
}

static pid_t parent_of(const char *pid)
{
	char path[64] = "/proc/", text[512];
	size_t n = strlen(pid);
	if (n > 20)
		return 0;
	memcpy(path + 6, pid, n);
	memcpy(path + 6 + n, "/stat", 6);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t got = read(fd, text, sizeof text);
	(void)close(fd);
	return got > 0 ? parent_in_stat(text, got) : 0;
}

static void kill_if_ours(const char *name)
{
	pid_t pid = 0;
	for (const char *c = name; *c != '\0'; c++) {
		if (*c < '0' || *c > '9')
			return;
		pid = pid * 10 + (*c - '0');
	}
	if (pid > 0 && parent_of(name) == getpid())
		(void)kill(pid, SIGKILL);
}

struct dirent64_raw { /* Layout that getdents64 writes. */
	uint64_t ino;
	int64_t off;
	unsigned short reclen;
	unsigned char type;
	char name[];
};

/* Kill every child. All descendants that lost their parent became children of the keeper
 * (PR_SET_CHILD_SUBREAPER), whatever group or session they moved to. */
static void kill_children(void)
{
	_Alignas(8) char buf[4096];
	int dir = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return;
	for (long n; (n = syscall(SYS_getdents64, dir, buf, sizeof buf)) > 0;)
		for (long at = 0; at < n;) {
			const struct dirent64_raw *d = (const void *)(buf + at);
			kill_if_ours(d->name);
			at += d->reclen;
		}
	(void)close(dir);
}

static void exit_note(struct keeper *k, pid_t pid, int status)
{
	if (pid != k->program)
		return;
	k->gone = true;
	k->status = status;
	/* Tell at once: the descendants may take seconds to die. */
	if (k->started)
		owner_tell(KEEPER_ENDED, status);
}

/* Return false once no child is left. */
static bool children_reap(struct keeper *k, int flags)
{
	int status = 0;
	for (;;) {
		pid_t pid = waitpid(-1, &status, flags);
		if (pid > 0)
			exit_note(k, pid, status);
		if (pid > 0 && flags == 0)
			return true;
		if (pid == 0)
			return true;
		if (pid < 0 && errno != EINTR)
			return false;
	}
}

/* Killing a parent makes its children ours, so repeat until none is left. */
static void descendants_kill(struct keeper *k)
{
	do {
		if (!k->gone)
			(void)kill(-k->program, SIGKILL);
		kill_children();
	} while (children_reap(k, 0));
}

_Noreturn static void finish(struct keeper *k)
{
	descendants_kill(k);
	owner_tell(KEEPER_EXITED, k->status);
	_exit(0);
}

static void program_stop(struct keeper *k)
{
	if (k->stopping)
		return;
	k->stopping = true;
	k->until_ms = now_ms() + k->grace_ms;
	(void)kill(-k->program, SIGTERM);
}

/* The owner died. Without an owner the descriptor stays in use, so that no other file gets its number. */
static void owner_lost(struct keeper *k)
{
	if (k->orphan_ms == 0 || k->stopping || k->gone)
		finish(k);
	k->orphan = true;
	k->until_ms = now_ms() + k->orphan_ms;
	(void)dup2(0, FD_CONTROL);
}

static void on_order(struct keeper *k)
{
	struct keeper_msg m;
	ssize_t n = recv(FD_CONTROL, &m, sizeof m, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n != (ssize_t)sizeof m)
		owner_lost(k);
	else if (m.kind == KEEPER_STOP)
		program_stop(k);
	else
		finish(k);
}

/* Send the card, with the ends of the output where the other side becomes the owner. */
static bool card_send(int fd, const struct keeper_card *card, bool with_output)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} control = {.bytes = {0}};
	const int fds[] = {FD_OUT_READ, FD_ERR_READ};
	struct keeper_card copy = *card;
	struct iovec iov = {.iov_base = &copy, .iov_len = sizeof copy};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	if (with_output) {
		m.msg_control = control.bytes;
		m.msg_controllen = sizeof control.bytes;
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof fds);
		memcpy(CMSG_DATA(c), fds, sizeof fds);
	}
	return sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)sizeof copy;
}

static bool is_our_user(int fd)
{
	struct ucred who;
	socklen_t n = sizeof who;
	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 &&
		(who.uid == getuid() || who.uid == 0);
}

/* An agent asks for the engine. It becomes the owner if there is none. */
static void on_caller(struct keeper *k)
{
	int fd = accept4(FD_LISTEN, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		return;
	bool free_now = k->orphan && !k->stopping && !k->gone;
	k->card.kind = free_now ? KEEPER_CARD : KEEPER_BUSY;
	k->card.program = (int32_t)k->program;
	k->card.unread = k->unread;
	if (is_our_user(fd) && card_send(fd, &k->card, free_now) && free_now) {
		(void)dup2(fd, FD_CONTROL);
		k->orphan = false;
		k->unread = 0;
	}
	(void)close(fd);
}

/* Without an owner the output is read and dropped, so that the program never waits for a reader. */
static void output_drop(struct keeper *k, int which)
{
	char buf[16384];
	ssize_t n = read(FD_OUT_READ + which, buf, sizeof buf);
	if (n > 0)
		k->unread += (uint64_t)n;
	else if (n == 0)
		k->closed[which] = true;
}

static int output_awaited(const struct keeper *k, int which)
{
	return k->orphan && !k->closed[which] ? FD_OUT_READ + which : -1;
}

static int poll_timeout(const struct keeper *k)
{
	if (!k->stopping && !k->orphan)
		return -1;
	int64_t left = k->until_ms - now_ms();
	return left > 0 ? (int)(left < 3600000 ? left : 3600000) : 0;
}

/* The time of the state is over: no owner came for the program, or it did not end when it was told to. */
static void time_over(struct keeper *k)
{
	if (now_ms() < k->until_ms)
		return;
	if (k->stopping)
		finish(k);
	program_stop(k);
}

_Noreturn static void watch(struct keeper *k)
{
	for (;;) {
		struct pollfd fds[] = {{.fd = k->orphan ? -1 : FD_CONTROL, .events = POLLIN},
			{.fd = FD_CHILD_SIGNAL, .events = POLLIN},
			{.fd = k->listens ? FD_LISTEN : -1, .events = POLLIN},
			{.fd = output_awaited(k, 0), .events = POLLIN},
			{.fd = output_awaited(k, 1), .events = POLLIN}};
		struct signalfd_siginfo info;
		int n = poll(fds, CGN_COUNT(fds), poll_timeout(k));
		if (n == 0)
			time_over(k);
		if (n > 0 && fds[1].revents != 0)
			(void)!read(FD_CHILD_SIGNAL, &info, sizeof info);
		/* When a program ends by itself, its descendants are killed at once; when it was told to
		 * stop, they may use the rest of the grace period. */
		bool any_left = children_reap(k, WNOHANG);
		if (!any_left || (k->gone && !k->stopping))
			finish(k);
		if (n > 0 && fds[0].revents != 0)
			on_order(k);
		if (n > 0 && fds[2].revents != 0)
			on_caller(k);
		for (int i = 0; n > 0 && i < 2; i++)
			if (fds[3 + i].revents != 0)
				output_drop(k, i);
	}
}

static int exec_result(void)
{
	int why = 0;
	ssize_t n;
	(void)close(FD_EXEC_W);
	do
		n = read(FD_EXEC_R, &why, sizeof why);
	while (n < 0 && errno == EINTR);
	(void)close(FD_EXEC_R);
	return n == (ssize_t)sizeof why ? why : 0;
}

static void keeper_prepare(const struct keeper_job *job)
{
	sigset_t all, child;
	int exec_pipe[2];
	(void)setsid(); /* A ^C at the owner's terminal must not reach the program. */
	(void)prctl(PR_SET_CHILD_SUBREAPER, 1);
	(void)prctl(PR_SET_NAME, "cgn-keeper");
	(void)sigfillset(&all);
	(void)sigprocmask(SIG_SETMASK, &all, NULL);
	settle_descriptors(job);
	(void)sigemptyset(&child);
	(void)sigaddset(&child, SIGCHLD);
	/* The lowest free descriptors are used in order. */
	if (pipe(exec_pipe) != 0 || exec_pipe[0] != FD_EXEC_R || exec_pipe[1] != FD_EXEC_W ||
		signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC) != FD_CHILD_SIGNAL)
		_exit(126);
}

_Noreturn void keeper_run(const struct keeper_job *job)
{
	struct keeper k = {.grace_ms = job->grace_ms,
		.orphan_ms = job->orphan_ms,
		.card = job->card,
		.listens = job->listen >= 0};
	keeper_prepare(job);
	pid_t self = getpid();
	k.program = _Fork();
	if (k.program == 0)
		become(job, self);
	if (k.program < 0) {
		owner_tell(KEEPER_EXEC_FAILED, errno);
		_exit(0);
	}
	(void)setpgid(k.program, k.program); /* Also called in the child: either may run first. */
	(void)dup2(0, FD_OUT); /* The program alone holds the writing ends, so that their end is seen. */
	(void)dup2(0, FD_ERR);
	int why = exec_result();
	if (why != 0) {
		descendants_kill(&k);
		owner_tell(KEEPER_EXEC_FAILED, why);
		_exit(0);
	}
	k.started = true;
	watch(&k);
}
