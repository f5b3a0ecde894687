/* SPDX-License-Identifier: Apache-2.0 */
#include "io/os/proc/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uv.h>

#include "io/os/proc/proc_priv.h"

#define PROC_TAG      0x9e0c0001U
#define DEFAULT_GRACE (10 * CGN_SEC)
#define MAX_GRACE     (3600 * CGN_SEC)
/* Reads of the scratch buffer per turn and stream, so that a chatty program does not hold up the loop. */
#define READ_ROUNDS 16

extern char **environ;

struct proc_stream {
	uv_poll_t poll;
	struct proc *owner;
	struct proc_lines lines;
	int fd; /* -1: closed */
	bool is_stderr;
};

struct proc {
	uint32_t tag;
	struct cgn_loop *loop;
	struct proc_ops ops;
	void *user;
	uv_poll_t control_poll;
	struct proc_stream out, err;
	struct proc_rate rate;
	int control;           /* Our end of the socket pair. */
	pid_t keeper, program; /* keeper: 0 when it is not this process's child. */
	char *place;           /* NULL: none */
	unsigned open_handles;
	bool stopped, freed, outlives;
};

/* ---- finding the program ---- */
static bool is_program(const char *file)
{
	struct stat st;
	return stat(file, &st) == 0 && S_ISREG(st.st_mode) && access(file, X_OK) == 0;
}

static CGN_RC find_here(const char *name, char *out, size_t cap, struct cgn_err *err)
{
	struct stat st;
	if (!cgn_str_copyz(out, cap, cgn_str_of(name)))
		return CGN_FAIL(err, INVALID, "the program's path is longer than %zu bytes", cap - 1);
	if (stat(name, &st) != 0)
		return CGN_FAIL(err, NOT_FOUND, "program %s: %s", name, strerror(errno));
	if (!is_program(name))
		return CGN_FAIL(err, FORBIDDEN, "program %s is not an executable file", name);
	return CGN_OK;
}

CGN_RC proc_find(const char *name, const char *path_list, char *out, size_t cap, struct cgn_err *err)
{
	if (strchr(name, '/') != NULL)
		return find_here(name, out, cap, err);
	struct cgn_str rest = cgn_str_of(path_list);
	while (rest.p != NULL) {
		struct cgn_str dir = cgn_str_split(&rest, ':');
		int n = snprintf(out, cap, "%.*s/%s", dir.n > 0 ? (int)dir.n : 1, dir.n > 0 ? dir.p : ".",
			name);
		if (n > 0 && (size_t)n < cap && is_program(out))
			return CGN_OK;
	}
	return CGN_FAIL(err, NOT_FOUND, "program %s is not in PATH (%.250s): install it or name its file",
		name, path_list != NULL ? path_list : "");
}

/* ---- output ---- */
static void on_stream_line(void *user, struct cgn_str line, unsigned long dropped)
{
	struct proc_stream *s = user;
	if (!s->owner->freed)
		s->owner->ops.on_line(s->owner->user, s->is_stderr, line, dropped);
}

/* Return false at the end of the stream. */
static bool stream_read(struct proc_stream *s, unsigned rounds)
{
	uint8_t *buf = cgn_loop_scratch(s->owner->loop);
	while (rounds-- > 0 && !s->owner->freed) {
		ssize_t n = read(s->fd, buf, CGN_LOOP_SCRATCH);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return true;
		if (n <= 0)
			return false;
		proc_lines_feed(&s->lines, &s->owner->rate, buf, (size_t)n, cgn_loop_now(s->owner->loop),
			on_stream_line, s);
	}
	return true;
}

static void proc_release(struct proc *p)
{
	p->tag = 0;
	free(p->place);
	free(p);
}

static void handle_closed(struct proc *p)
{
	CGN_LIVE(p, PROC_TAG);
	CGN_MUST(p->open_handles > 0);
	if (--p->open_handles == 0)
		proc_release(p);
}

static void on_stream_closed(uv_handle_t *h)
{
	struct proc_stream *s = h->data;
	handle_closed(s->owner);
}

static void stream_close(struct proc_stream *s)
{
	if (s->fd < 0)
		return;
	proc_lines_end(&s->lines, &s->owner->rate, cgn_loop_now(s->owner->loop), on_stream_line, s);
	if (s->fd < 0) /* The callback freed the proc. */
		return;
	uv_close((uv_handle_t *)&s->poll, on_stream_closed);
	(void)close(s->fd);
	s->fd = -1;
}

static void on_stream_ready(uv_poll_t *h, int status, int events)
{
	struct proc_stream *s = h->data;
	(void)events;
	CGN_LIVE(s->owner, PROC_TAG);
	if (s->fd >= 0 && (status < 0 || !stream_read(s, READ_ROUNDS)) && s->fd >= 0)
		stream_close(s);
}

/* No process holds the other end, so nothing follows the buffered bytes. */
static void stream_finish(struct proc_stream *s)
{
	if (s->fd >= 0)
		(void)stream_read(s, READ_ROUNDS);
	stream_close(s);
}

/* ---- the keeper's word ---- */
static void on_control_closed(uv_handle_t *h)
{
	handle_closed(h->data);
}

static void control_close(struct proc *p)
{
	if (p->control < 0)
		return;
	uv_close((uv_handle_t *)&p->control_poll, on_control_closed);
	(void)close(p->control);
	p->control = -1;
	while (p->keeper > 0 && waitpid(p->keeper, NULL, 0) < 0 && errno == EINTR)
		;
	proc_place_clear(p->place);
}

static struct proc_exit exit_of_status(int status)
{
	if (WIFSIGNALED(status))
		return (struct proc_exit){.code = -1, .signal = WTERMSIG(status)};
	return (struct proc_exit){.code = WEXITSTATUS(status)};
}

static void program_ended(struct proc *p, struct proc_exit why)
{
	p->program = 0;
	stream_finish(&p->out);
	stream_finish(&p->err);
	control_close(p);
	if (!p->freed)
		p->ops.on_exit(p->user, &why);
}

static void program_ending(struct proc *p, struct proc_exit why)
{
	struct proc_stream *streams[] = {&p->out, &p->err};
	p->program = 0;
	for (size_t i = 0; i < CGN_COUNT(streams); i++)
		if (streams[i]->fd >= 0)
			(void)stream_read(streams[i], READ_ROUNDS);
	if (!p->freed && p->ops.on_ended != NULL)
		p->ops.on_ended(p->user, &why);
}

/* The keeper was killed. The program dies with it; kill its process group and its session here. */
static void keeper_lost(struct proc *p)
{
	if (p->program > 0)
		(void)kill(-p->program, SIGKILL);
	if (p->place != NULL)
		(void)proc_end_strays(p->place);
	program_ended(p, (struct proc_exit){.code = -1, .signal = SIGKILL});
}

static void on_control_ready(uv_poll_t *h, int status, int events)
{
	struct proc *p = h->data;
	struct keeper_msg m;
	(void)status;
	(void)events;
	CGN_LIVE(p, PROC_TAG);
	ssize_t n = recv(p->control, &m, sizeof m, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n != (ssize_t)sizeof m) {
		keeper_lost(p);
		return;
	}
	if (m.kind == KEEPER_STARTED)
		p->program = m.value;
	else if (m.kind == KEEPER_ENDED)
		program_ending(p, exit_of_status(m.value));
	else if (m.kind == KEEPER_EXEC_FAILED)
		program_ended(p, (struct proc_exit){.exec_errno = m.value, .code = -1});
	else
		program_ended(p, exit_of_status(m.value));
}

/* ---- start ---- */
struct plumbing {
	int control[2], out[2], err[2];
	int listen; /* -1: none */
};

static void stream_shut(int *fd)
{
	if (*fd >= 0)
		(void)close(*fd);
	*fd = -1;
}

static void plumbing_none(struct plumbing *pl)
{
	*pl = (struct plumbing){{-1, -1}, {-1, -1}, {-1, -1}, -1};
}

static void plumbing_close(struct plumbing *pl)
{
	for (int i = 0; i < 2; i++) {
		stream_shut(&pl->control[i]);
		stream_shut(&pl->out[i]);
		stream_shut(&pl->err[i]);
	}
	stream_shut(&pl->listen);
}

static CGN_RC plumbing_open(struct plumbing *pl, struct cgn_err *err)
{
	plumbing_none(pl);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pl->control) == 0 &&
		pipe2(pl->out, O_CLOEXEC) == 0 && pipe2(pl->err, O_CLOEXEC) == 0 &&
		fcntl(pl->out[0], F_SETFL, O_NONBLOCK) == 0 && fcntl(pl->err[0], F_SETFL, O_NONBLOCK) == 0)
		return CGN_OK;
	int e = errno;
	plumbing_close(pl);
	return CGN_FAIL(err, UNAVAILABLE, "no pipe for a child process: %s", strerror(e));
}

static bool is_overridden(const char *entry, const char *const *env)
{
	const char *eq = strchr(entry, '=');
	size_t n = eq != NULL ? (size_t)(eq - entry) + 1 : strlen(entry);
	for (size_t i = 0; env != NULL && env[i] != NULL; i++)
		if (strncmp(entry, env[i], n) == 0)
			return true;
	return false;
}

static size_t count_of(const char *const *list)
{
	size_t n = 0;
	while (list != NULL && list[n] != NULL)
		n++;
	return n;
}

/* Our environment with |env| on top; the strings are borrowed. */
static const char **environment_merge(const char *const *env)
{
	size_t ours = count_of((const char *const *)environ), n = 0;
	const char **all = CGN_NEW_ARRAY(const char *, ours + count_of(env) + 1);
	for (size_t i = 0; i < ours; i++)
		if (!is_overridden(environ[i], env))
			all[n++] = environ[i];
	for (size_t i = 0; env != NULL && env[i] != NULL; i++)
		all[n++] = env[i];
	return all;
}

/* execve takes its strings as char * and does not change them. */
static char *const *exec_strings(const char *const *v)
{
	union {
		const char *const *in;
		char *const *out;
	} u = {.in = v};
	return u.out;
}

static int job_ms(cgn_nsec t)
{
	return (int)(t / CGN_MSEC < INT32_MAX ? t / CGN_MSEC : INT32_MAX);
}

static pid_t fork_keeper(const struct plumbing *pl, const char *file, const struct proc_cfg *cfg,
	const char *const *envp)
{
	cgn_nsec grace = cfg->grace > 0 ? cfg->grace : DEFAULT_GRACE;
	bool outlives = pl->listen >= 0 && cfg->orphan_time > 0;
	struct keeper_job job = {
		.control = pl->control[1],
		.out = pl->out[1],
		.err = pl->err[1],
		.listen = pl->listen,
		.out_read = outlives ? pl->out[0] : -1,
		.err_read = outlives ? pl->err[0] : -1,
		.file = file,
		.argv = exec_strings(cfg->argv),
		.envp = exec_strings(envp),
		.grace_ms = job_ms(grace < MAX_GRACE ? grace : MAX_GRACE),
		.orphan_ms = outlives ? job_ms(cfg->orphan_time) : 0,
	};
	(void)cgn_str_copyz(job.card.word, sizeof job.card.word, cgn_str_of(cfg->word));
	pid_t pid = _Fork(); /* Fork without atfork handlers: libuv's close descriptors by number. */
	if (pid == 0)
		keeper_run(&job);
	return pid;
}

static void stream_open(struct proc *p, struct proc_stream *s, int *take_fd, bool is_stderr)
{
	s->owner = p;
	s->fd = *take_fd;
	*take_fd = -1;
	s->is_stderr = is_stderr;
	s->poll.data = s;
	/* uv_poll_init fails only for descriptors that epoll does not support; it supports pipes and
	 * sockets. */
	CGN_MUST(uv_poll_init(cgn_loop_uv(p->loop), &s->poll, s->fd) == 0);
	CGN_MUST(uv_poll_start(&s->poll, UV_READABLE, on_stream_ready) == 0);
	p->open_handles++;
}

static void listen_to_it(struct proc *p, struct plumbing *pl)
{
	p->control = pl->control[0];
	pl->control[0] = -1;
	p->control_poll.data = p;
	CGN_MUST(uv_poll_init(cgn_loop_uv(p->loop), &p->control_poll, p->control) == 0);
	CGN_MUST(uv_poll_start(&p->control_poll, UV_READABLE, on_control_ready) == 0);
	p->open_handles++;
	stream_open(p, &p->out, &pl->out[0], false);
	stream_open(p, &p->err, &pl->err[0], true);
}

CGN_RC proc_adopt(struct cgn_loop *l, const char *place, const struct proc_ops *ops, void *user,
	struct proc **out, struct proc_orphan *orphan, struct cgn_err *err)
{
	struct plumbing pl;
	struct keeper_card card;
	plumbing_none(&pl);
	CGN_TRY(proc_place_call(place, &card, &pl.control[0], &pl.out[0], &pl.err[0], err));
	struct proc *p = CGN_NEW(struct proc);
	*p = (struct proc){.tag = PROC_TAG,
		.loop = l,
		.ops = *ops,
		.user = user,
		.program = card.program,
		.outlives = true,
		.place = cgn_str_dupz(cgn_str_of(place))};
	listen_to_it(p, &pl);
	orphan->unread = card.unread;
	memcpy(orphan->word, card.word, sizeof orphan->word);
	*out = p;
	return CGN_OK;
}

CGN_RC proc_spawn(struct cgn_loop *l, const struct proc_cfg *cfg, const struct proc_ops *ops, void *user,
	struct proc **out, struct cgn_err *err)
{
	char file[4096];
	struct plumbing pl;
	CGN_MUST(cfg->argv != NULL && cfg->argv[0] != NULL);
	CGN_TRY(proc_find(cfg->argv[0], getenv("PATH"), file, sizeof file, err));
	CGN_TRY(plumbing_open(&pl, err));
	struct proc *p = CGN_NEW(struct proc);
	*p = (struct proc){.tag = PROC_TAG, .loop = l, .ops = *ops, .user = user};
	if (cfg->place != NULL) {
		p->place = cgn_str_dupz(cgn_str_of(cfg->place));
		/* Without a socket the program cannot outlive its owner, and runs all the same. */
		p->outlives = cgn_ok(proc_place_listen(cfg->place, &pl.listen, NULL)) && cfg->orphan_time > 0;
	}
	const char **envp = environment_merge(cfg->env);
	p->keeper = fork_keeper(&pl, file, cfg, envp);
	int e = errno;
	free(envp);
	if (p->keeper > 0) {
		if (cfg->place != NULL)
			proc_place_note(cfg->place, p->keeper);
		listen_to_it(p, &pl);
		*out = p;
	} else {
		proc_release(p);
		p = NULL;
	}
	plumbing_close(&pl);
	return p != NULL ? CGN_OK : CGN_FAIL(err, UNAVAILABLE, "can't start %s: %s", file, strerror(e));
}

/* ---- end ---- */
pid_t proc_pid(const struct proc *p)
{
	CGN_LIVE(p, PROC_TAG);
	return p->program;
}

bool proc_outlives(const struct proc *p)
{
	CGN_LIVE(p, PROC_TAG);
	return p->outlives;
}

void proc_stop(struct proc *p)
{
	CGN_LIVE(p, PROC_TAG);
	struct keeper_msg m = {.kind = KEEPER_STOP};
	if (p->stopped || p->control < 0)
		return;
	p->stopped = true;
	/* Fails when the keeper is gone, which the next read reports. */
	(void)!send(p->control, &m, sizeof m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Order the end of everything and wait for it: closing the connection alone would leave an orphan. */
static void keeper_kill(struct proc *p)
{
	struct keeper_msg m = {.kind = KEEPER_KILL};
	if (p->control < 0)
		return;
	(void)!send(p->control, &m, sizeof m, MSG_NOSIGNAL);
	for (;;) {
		struct pollfd wait = {.fd = p->control, .events = POLLIN}; /* libuv made it non-blocking. */
		if (poll(&wait, 1, -1) < 0 && errno == EINTR)
			continue;
		if (recv(p->control, &m, sizeof m, MSG_DONTWAIT) != (ssize_t)sizeof m ||
			m.kind == KEEPER_EXITED || m.kind == KEEPER_EXEC_FAILED)
			return;
	}
}

void proc_free(struct proc **take)
{
	struct proc *p = CGN_TAKE_LIVE(take, PROC_TAG);
	if (p == NULL)
		return;
	p->freed = true;
	keeper_kill(p);
	stream_close(&p->out);
	stream_close(&p->err);
	control_close(p);
}

const char *proc_exit_text(const struct proc_exit *why, char *buf, size_t cap)
{
	if (why->exec_errno != 0)
		(void)snprintf(buf, cap, "could not be executed: %s", strerror(why->exec_errno));
	else if (why->signal != 0)
		(void)snprintf(buf, cap, "killed by signal %d (%s)", why->signal, strsignal(why->signal));
	else
		(void)snprintf(buf, cap, "exit status %d", why->code);
	return buf;
}
