/* SPDX-License-Identifier: Apache-2.0 */
/* top: shows the cluster until it is told to stop: on a terminal a screen that follows keys and the window's size,
 * elsewhere one text or JSON line after the other. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <sys/ioctl.h>

#include "base/pb/pb.h"
#include "ctl/cluster/status.h"
#include "ctl/top/view.h"
#include "io/os/loop/loop.h"

#define ANSWER_TIMEOUT (2 * CGN_SEC)
#define PLAIN_WIDTH    ((size_t)200)

static volatile sig_atomic_t stopped; /* The signal that ends the program. */

static void on_stop(int signo)
{
	stopped = signo;
}

static void on_resize(int signo)
{
	(void)signo; /* Only interrupts the wait. */
}

struct top {
	const struct ctl_args *args;
	struct top_view view;
	Cognitora__V1__StatusResponse *status; /* The newest; NULL: none came yet. */
	char trouble[sizeof((struct cgn_err *)0)->msg + 32];
	bool screen; /* stdout is a terminal. */
	bool keys;   /* stdin is one too. */
	struct termios before;
};

/* ---- the terminal ---- */

static void screen_put(const char *codes)
{
	(void)fputs(codes, stdout);
	(void)fflush(stdout);
}

/* Use a screen of its own, without a cursor, and get keys at once. */
static void screen_open(struct top *t)
{
	struct termios raw;
	if (t->keys && tcgetattr(STDIN_FILENO, &t->before) == 0) {
		raw = t->before;
		raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
		raw.c_cc[VMIN] = 0;
		raw.c_cc[VTIME] = 0;
		t->keys = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
	}
	screen_put("\033[?1049h\033[?25l");
}

static void screen_close(struct top *t)
{
	screen_put("\033[?25h\033[?1049l");
	if (t->keys)
		(void)tcsetattr(STDIN_FILENO, TCSANOW, &t->before);
}

static void screen_measure(struct top *t)
{
	struct winsize size;
	bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
	t->view.width = known ? size.ws_col : 80;
	t->view.height = known ? size.ws_row : 24;
}

static void signals_catch(void)
{
	struct sigaction stop = {.sa_handler = on_stop}, resize = {.sa_handler = on_resize};
	(void)sigaction(SIGINT, &stop, NULL);
	(void)sigaction(SIGTERM, &stop, NULL);
	(void)sigaction(SIGHUP, &stop, NULL);
	(void)sigaction(SIGWINCH, &resize, NULL);
}

/* ---- showing ---- */

static void clock_set(struct top_view *v)
{
	struct tm day;
	time_t now = time(NULL);
	if (localtime_r(&now, &day) != NULL)
		(void)strftime(v->clock, sizeof v->clock, "%H:%M:%S", &day);
}

/* Write the whole screen at once, so that it does not flicker. */
static CGN_RC screen_draw(struct top *t, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	screen_measure(t);
	cgn_buf_putz(&out, "\033[?2026h\033[H");
	top_view_write(&t->view, t->status, "\033[K\r\n", &out);
	cgn_buf_putz(&out, "\033[K\033[J\033[?2026l");
	return ctl_print_bytes(&out, err);
}

static CGN_RC plain_write(struct top *t, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	if (t->status == NULL || t->view.trouble != NULL) {
		(void)fprintf(stderr, "cgn-ctl: %s\n", t->trouble);
		return CGN_OK;
	}
	if (t->args->json) {
		top_view_json(&t->view, t->status, &out);
	} else {
		top_view_write(&t->view, t->status, "\n", &out);
		cgn_buf_char(&out, '\n');
	}
	return ctl_print_bytes(&out, err);
}

/* Ask the router. When it does not answer, the last status stays and the trouble is shown with it. */
static void status_take(struct top *t)
{
	Cognitora__V1__StatusResponse *fresh = NULL;
	struct cgn_err err;
	clock_set(&t->view);
	if (cgn_ok(ctl_status_ask(t->args, ANSWER_TIMEOUT, &fresh, &err))) {
		pb_free(&t->status);
		t->status = fresh;
		t->view.trouble = NULL;
		top_view_take(&t->view, fresh, cgn_clock_now());
		return;
	}
	(void)snprintf(t->trouble, sizeof t->trouble, "trying again: %s", err.msg);
	t->view.trouble = t->trouble;
}

/* ---- keys ---- */

/* Translate the bytes of one read; an arrow comes as three of them. Returns false when a key ends the program. */
static bool keys_take(struct top *t, const char *bytes, size_t n)
{
	static const struct {
		const char *code;
		int key;
	} long_keys[] = {{"\033[A", TOP_KEY_UP}, {"\033[B", TOP_KEY_DOWN}, {"\033[C", TOP_KEY_RIGHT},
		{"\033[D", TOP_KEY_LEFT}, {"\033OA", TOP_KEY_UP}, {"\033OB", TOP_KEY_DOWN},
		{"\033OC", TOP_KEY_RIGHT}, {"\033OD", TOP_KEY_LEFT}, {"\033[5~", TOP_KEY_PAGE_UP},
		{"\033[6~", TOP_KEY_PAGE_DOWN}};
	for (size_t at = 0; at < n;) {
		size_t used = 1;
		int key = (unsigned char)bytes[at];
		for (size_t i = 0; i < CGN_COUNT(long_keys); i++) {
			size_t k = strlen(long_keys[i].code);
			if (n - at >= k && memcmp(bytes + at, long_keys[i].code, k) == 0) {
				key = long_keys[i].key;
				used = k;
			}
		}
		if (!top_view_key(&t->view, key))
			return false;
		at += used;
	}
	return true;
}

/* Wait until |until| and act on keys; draw again after each and after a change of the window's size. Returns false
 * when the program shall end. */
static bool keys_wait(struct top *t, cgn_nsec until, struct cgn_err *err)
{
	for (;;) {
		cgn_nsec now = cgn_clock_now();
		struct pollfd in = {.fd = t->keys ? STDIN_FILENO : -1, .events = POLLIN};
		if (stopped != 0)
			return false;
		if (now >= until)
			return true;
		int n = poll(&in, 1, (int)((until - now) / CGN_MSEC) + 1);
		if (n > 0) {
			char bytes[64];
			ssize_t got = read(STDIN_FILENO, bytes, sizeof bytes);
			if (got <= 0 || !keys_take(t, bytes, (size_t)got))
				return false; /* The terminal has gone, or a key ends the program. */
		}
		bool changed = n > 0 || (n < 0 && errno == EINTR);
		if (changed && stopped == 0 && t->screen && !cgn_ok(screen_draw(t, err)))
			return false;
	}
}

static CGN_RC rounds_run(struct top *t, cgn_nsec every, uint64_t count, struct cgn_err *err)
{
	for (uint64_t round = 1;; round++) {
		cgn_nsec began = cgn_clock_now();
		status_take(t);
		cgn_rc rc = t->screen ? screen_draw(t, err) : plain_write(t, err);
		if (!cgn_ok(rc)) /* A reader of the pipe that has seen enough does not count as a failure. */
			return errno == EPIPE ? CGN_OK : rc;
		if (count > 0 && round == count)
			return t->status != NULL ? CGN_OK : CGN_FAIL(err, UNAVAILABLE, "%s", t->trouble);
		err->code = CGN_FINE;
		if (!keys_wait(t, began + every, err))
			return err->code == CGN_FINE ? CGN_OK : (cgn_rc){err->code};
	}
}

CGN_RC ctl_top(const struct ctl_args *a, struct cgn_err *err)
{
	cgn_nsec every;
	uint64_t count = 0;
	CGN_TRY(ctl_flag_duration(a, "--every", &every, err));
	CGN_TRY(ctl_flag_u64(a, "--count", 0, UINT32_MAX, &count, err));
	if (every < 100 * CGN_MSEC)
		return CGN_FAIL(err, INVALID, "--every: at least 100ms, so that the router is not kept busy");
	struct top *t = CGN_NEW(struct top);
	t->args = a;
	t->screen = !a->json && ctl_is_terminal(STDOUT_FILENO);
	t->keys = t->screen && ctl_is_terminal(STDIN_FILENO);
	t->view.keys = t->screen;
	t->view.colour = t->screen && getenv("NO_COLOR") == NULL;
	t->view.width = PLAIN_WIDTH;
	signals_catch();
	if (t->screen)
		screen_open(t);
	cgn_rc rc = rounds_run(t, every, count, err);
	if (t->screen)
		screen_close(t);
	pb_free(&t->status);
	free(t);
	return rc;
}
