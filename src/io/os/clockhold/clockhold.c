/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's side: starts the helper, sends orders, reads its words. */
#include "io/os/clockhold/clockhold.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uv.h>

#include "base/core/str.h"
#include "io/os/clockhold/clockhold_priv.h"

#define CLOCKHOLD_TAG 0xc10c4001U
#define REAP_PAUSE    (10 * CGN_MSEC)

extern char **environ;

struct clockhold {
	uint32_t tag;
	struct cgn_loop *loop;
	struct clockhold_ops ops;
	void *user;
	uv_poll_t poll;
	struct cgn_grave grave;
	struct cgn_timer reap; /* The helper's socket is closed; its end is awaited */
	pid_t pid;             /* 0: it was reaped */
	int fd;                /* -1: closed */
	bool ending, freed;
	unsigned open_handles;
	enum cgn_code trouble; /* As the helper told it; FINE: none */
	char why[200];
};

/* ---- the end ---- */

static void on_hold_buried(struct cgn_grave *g)
{
	struct clockhold *h = CGN_CONTAINER(g, struct clockhold, grave);
	h->tag = 0;
	free(h);
}

/* The caller may free the object in |ended|, and still reads its words then. */
static void hold_release(struct clockhold *h)
{
	if (h->freed && h->open_handles == 0)
		cgn_loop_bury(h->loop, &h->grave, on_hold_buried);
}

static void on_poll_closed(uv_handle_t *handle)
{
	struct clockhold *h = handle->data;
	h->open_handles--;
	hold_release(h);
}

static void socket_close(struct clockhold *h)
{
	if (h->fd < 0)
		return;
	uv_close((uv_handle_t *)&h->poll, on_poll_closed);
	(void)close(h->fd);
	h->fd = -1;
}

/* Return true once the helper's process is gone. Waits up to |most|. */
static bool helper_reap(struct clockhold *h, cgn_nsec most)
{
	cgn_nsec until = cgn_clock_now() + most;
	while (h->pid > 0) {
		pid_t got = waitpid(h->pid, NULL, WNOHANG);
		if (got == h->pid || (got < 0 && errno == ECHILD))
			h->pid = 0;
		else if (cgn_clock_now() >= until)
			return false;
		else
			(void)poll(NULL, 0, 2);
	}
	return true;
}

static void on_reap_timer(struct cgn_timer *t)
{
	struct clockhold *h = CGN_CONTAINER(t, struct clockhold, reap);
	CGN_LIVE(h, CLOCKHOLD_TAG);
	if (!helper_reap(h, 0)) {
		cgn_timer_set(t, REAP_PAUSE);
		return;
	}
	if (h->trouble == CGN_FINE && !h->ending) {
		h->trouble = CGN_UNAVAILABLE;
		(void)snprintf(h->why, sizeof h->why, "the helper that limits clocks was killed");
	}
	h->ops.ended(h->user, h->trouble, h->why);
}

/* ---- the helper's words ---- */

static void word_take(struct clockhold *h, struct clockhold_word *w)
{
	w->why[sizeof w->why - 1] = w->gpu.uuid[sizeof w->gpu.uuid - 1] = '\0';
	if (w->kind == CLOCKHOLD_GPU && w->gpu.n <= NVML_MAX_CLOCKS) {
		h->ops.gpu(h->user, &w->gpu);
	} else if (w->kind == CLOCKHOLD_READY) {
		h->ops.ready(h->user, w->lifted, w->failed, w->why);
	} else if (w->kind == CLOCKHOLD_WAITING) {
		h->ops.waiting(h->user);
	} else if (w->kind == CLOCKHOLD_TROUBLE) {
		h->trouble = (enum cgn_code)w->code;
		memcpy(h->why, w->why, sizeof h->why);
	} else if (w->kind == CLOCKHOLD_DONE) {
		struct clockhold_done d = {.high_mhz = w->high_mhz, .code = (enum cgn_code)w->code};
		memcpy(d.uuid, w->gpu.uuid, sizeof d.uuid);
		memcpy(d.why, w->why, sizeof d.why);
		h->ops.done(h->user, &d);
	}
}

static void on_helper_word(uv_poll_t *p, int status, int events)
{
	struct clockhold *h = p->data;
	struct clockhold_word w;
	(void)status;
	(void)events;
	CGN_LIVE(h, CLOCKHOLD_TAG);
	while (h->fd >= 0) {
		ssize_t n = recv(h->fd, &w, sizeof w, MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n == (ssize_t)sizeof w) {
			word_take(h, &w);
			continue;
		}
		socket_close(h);
		cgn_timer_set(&h->reap, 0);
	}
}

/* ---- start ---- */

static int helper_spawn(const struct clockhold_cfg *cfg, int fd, pid_t *out)
{
	char gpus[1024];
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t none, all;
	(void)snprintf(gpus, sizeof gpus, "%s%s", cfg->gpus != NULL ? "=" : "",
		cfg->gpus != NULL ? cfg->gpus : "");
	const char *const words[] = {"cgn-agent", CLOCKHOLD_ARG, cfg->library, gpus, cfg->record,
		cfg->log_format, NULL};
	char *argv[CGN_COUNT(words)];
	memcpy(argv, words, sizeof words);
	(void)sigemptyset(&none);
	(void)sigfillset(&all);
	(void)posix_spawn_file_actions_init(&files);
	(void)posix_spawn_file_actions_adddup2(&files, fd, 0);
	(void)posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
	(void)posix_spawnattr_init(&attr);
	(void)posix_spawnattr_setsigmask(&attr, &none);
	(void)posix_spawnattr_setsigdefault(&attr, &all);
	(void)posix_spawnattr_setflags(&attr,
		(short)(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID));
	int rc = posix_spawn(out, "/proc/self/exe", &files, &attr, argv, environ);
	(void)posix_spawnattr_destroy(&attr);
	(void)posix_spawn_file_actions_destroy(&files);
	return rc;
}

CGN_RC clockhold_open(struct cgn_loop *l, const struct clockhold_cfg *cfg, const struct clockhold_ops *ops,
	void *user, struct clockhold **out, struct cgn_err *err)
{
	int pair[2];
	struct clockhold *h = CGN_NEW(struct clockhold);
	*h = (struct clockhold){.tag = CLOCKHOLD_TAG,
		.loop = l,
		.ops = *ops,
		.user = user,
		.fd = -1,
		.trouble = CGN_FINE};
	cgn_timer_init(&h->reap, l, on_reap_timer);
	int rc = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0 ? 0 : errno;
	if (rc == 0) {
		rc = helper_spawn(cfg, pair[1], &h->pid);
		(void)close(pair[1]);
		if (rc != 0)
			(void)close(pair[0]);
	}
	if (rc != 0) {
		free(h);
		return CGN_FAIL(err, UNAVAILABLE, "cannot start the helper that limits clocks: %s",
			strerror(rc));
	}
	h->fd = pair[0];
	h->poll.data = h;
	CGN_MUST(uv_poll_init(cgn_loop_uv(l), &h->poll, h->fd) == 0);
	CGN_MUST(uv_poll_start(&h->poll, UV_READABLE, on_helper_word) == 0);
	h->open_handles = 1;
	*out = h;
	return CGN_OK;
}

/* ---- orders ---- */

static bool order_send(struct clockhold *h, struct clockhold_order *o, const char *uuid)
{
	CGN_LIVE(h, CLOCKHOLD_TAG);
	if (h->fd < 0 || h->ending)
		return false;
	(void)cgn_str_copyz(o->uuid, sizeof o->uuid, cgn_str_of(uuid));
	return send(h->fd, o, sizeof *o, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof *o;
}

bool clockhold_lock(struct clockhold *h, const char *uuid, uint32_t low_mhz, uint32_t high_mhz,
	bool take_over)
{
	struct clockhold_order o = {.kind = CLOCKHOLD_LOCK,
		.low_mhz = low_mhz,
		.high_mhz = high_mhz,
		.take_over = take_over ? 1 : 0};
	return order_send(h, &o, uuid);
}

bool clockhold_reset(struct clockhold *h, const char *uuid)
{
	struct clockhold_order o = {.kind = CLOCKHOLD_RESET};
	return order_send(h, &o, uuid);
}

void clockhold_end(struct clockhold *h)
{
	CGN_LIVE(h, CLOCKHOLD_TAG);
	h->ending = true;
	if (h->fd >= 0)
		(void)shutdown(h->fd, SHUT_WR);
}

pid_t clockhold_pid(const struct clockhold *h)
{
	return h->pid;
}

void clockhold_free(struct clockhold **take, cgn_nsec most)
{
	struct clockhold *h = CGN_TAKE_LIVE(take, CLOCKHOLD_TAG);
	if (h == NULL)
		return;
	cgn_timer_cancel(&h->reap);
	socket_close(h);
	(void)helper_reap(h, most);
	h->freed = true;
	hold_release(h);
}
