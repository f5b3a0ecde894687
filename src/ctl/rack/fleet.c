/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/rack/fleet.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "ctl/install/install.h"

#define MAX_ARGS 40

/* ---- processes ---- */

int fleet_start(char *const argv[], int in, int out, int err)
{
	(void)fflush(NULL);
	pid_t pid = fork();
	if (pid != 0)
		return pid;
	if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0)
		_exit(127);
	(void)execvp(argv[0], argv);
	(void)dprintf(STDERR_FILENO, "cannot run %s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

static int status_of(int status)
{
	return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

int fleet_wait(int pid)
{
	int status = 0;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return 255;
	return status_of(status);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st, (void)kind, (void)at;
	(void)remove(path);
	return 0;
}

void fleet_remove(const char *folder)
{
	(void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- the command line ---- */

/* The words of a command line. The texts live as long as it. */
struct words {
	char *list[MAX_ARGS];
	size_t n;
	char control[96], port[12], config[PATH_MAX];
	struct cgn_buf command;
};

static void word_add(struct words *w, const char *word)
{
	CGN_MUST(w->n < MAX_ARGS - 1);
	w->list[w->n++] = (char *)(uintptr_t)word;
	w->list[w->n] = NULL;
}

static void config_add(struct words *w, const struct fleet *f, const struct rack_host *h)
{
	if (h->ssh_config == NULL)
		return;
	(void)snprintf(w->config, sizeof w->config, "%s%s%s", h->ssh_config[0] == '/' ? "" : f->folder,
		h->ssh_config[0] == '/' ? "" : "/", h->ssh_config);
	word_add(w, "-F");
	word_add(w, w->config);
}

static void ssh_words(struct words *w, const struct fleet *f, const struct rack_host *h)
{
	static const char *const fixed[] = {"ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
		"-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4", "-o", "ControlMaster=auto",
		"-o", "ControlPersist=60", "-o"};
	for (size_t i = 0; i < CGN_COUNT(fixed); i++)
		word_add(w, fixed[i]);
	(void)snprintf(w->control, sizeof w->control, "ControlPath=%s/%%C", f->work);
	word_add(w, w->control);
	config_add(w, f, h);
	if (h->port != 0) {
		(void)snprintf(w->port, sizeof w->port, "%u", h->port);
		word_add(w, "-p");
		word_add(w, w->port);
	}
	if (h->user != NULL) {
		word_add(w, "-l");
		word_add(w, h->user);
	}
}

static const char *script_text(const char *name)
{
	char path[64];
	(void)snprintf(path, sizeof path, "rack/%s.sh", name);
	const char *text = install_source_text(path);
	CGN_MUST(strchr(text, '\'') == NULL);
	return text;
}

/* The only text that a shell of the host reads is a script of this program. */
static void command_words(struct words *w, const struct fleet *f, const struct fleet_call *c)
{
	const char *head = script_text("head"), *order = script_text(c->order);
	if (f->root[0] != '\0') {
		cgn_buf_fmt(&w->command, "%s%s", head, order);
		word_add(w, "sh");
		word_add(w, "-c");
		word_add(w, cgn_buf_z(&w->command));
		return;
	}
	ssh_words(w, f, c->host);
	word_add(w, "--");
	word_add(w, c->host->ssh != NULL ? c->host->ssh : c->host->address);
	cgn_buf_fmt(&w->command, "exec %ssh -c '%s%s'", c->host->sudo ? "sudo -n " : "", head, order);
	word_add(w, cgn_buf_z(&w->command));
}

/* ---- calls ---- */

void fleet_first_line(const struct fleet *f, const struct rack_host *h, struct cgn_buf *out)
{
	if (f->root[0] != '\0')
		cgn_buf_fmt(out, "%s/%s", f->root, h->name);
	cgn_buf_char(out, '\n');
}

static int input_open(const struct fleet *f, struct fleet_call *c)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf all = {0};
	if (c->file > 0) {
		int fd = c->file;
		c->file = 0;
		return fd;
	}
	fleet_first_line(f, c->host, &all);
	cgn_buf_str(&all, cgn_buf_view(&c->input));
	int fd = memfd_create("input", MFD_CLOEXEC);
	if (fd >= 0 &&
		(all.bad || write(fd, all.p, all.n) != (ssize_t)all.n || lseek(fd, 0, SEEK_SET) != 0)) {
		(void)close(fd);
		return -1;
	}
	return fd;
}

static CGN_RC call_start(struct fleet *f, struct fleet_call *c, struct cgn_err *err)
{
	struct words w = {.n = 0};
	if (c->prepare != NULL)
		CGN_TRY(c->prepare(c, err));
	c->in = input_open(f, c);
	c->out = memfd_create("output", MFD_CLOEXEC);
	c->err = memfd_create("error", MFD_CLOEXEC);
	command_words(&w, f, c);
	if (c->in >= 0 && c->out >= 0 && c->err >= 0 && !w.command.bad)
		c->pid = fleet_start(w.list, c->in, c->out, c->err);
	cgn_buf_fini(&w.command);
	return c->pid > 0
		? CGN_OK
		: CGN_FAIL(err, UNAVAILABLE, "host %s: cannot start ssh: %s", c->host->name, strerror(errno));
}

/* Read the printed output: all of it, or its end if it is longer than |limit|. */
static bool printed_read(int fd, size_t limit, struct cgn_buf *out)
{
	off_t size = lseek(fd, 0, SEEK_END);
	if (size < 0)
		return false;
	size_t n = (size_t)size < limit ? (size_t)size : limit;
	char *room = n > 0 ? cgn_buf_room(out, n) : NULL;
	if (room == NULL)
		return n == 0;
	ssize_t got = pread(fd, room, n, size - (off_t)n);
	cgn_buf_grew(out, got > 0 ? (size_t)got : 0);
	return got == (ssize_t)n && (size_t)size <= limit;
}

/* Say why, by the end of what the host or ssh printed. */
static cgn_rc call_fail(const struct fleet_call *c, int status, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf shown = {0};
	(void)printed_read(c->err, 250, &text);
	struct cgn_str rest = cgn_buf_view(&text);
	while (rest.n > 0) {
		struct cgn_str line = cgn_str_trim(cgn_str_split(&rest, '\n'));
		if (line.n > 0 && line.p[line.n - 1] == '\r')
			line.n--;
		if (line.n > 0 && shown.n > 0)
			cgn_buf_putz(&shown, "; ");
		cgn_buf_shown(&shown, line);
	}
	return CGN_FAIL(err, UNAVAILABLE, "host %s: %s%s", c->host->name, status == 255 ? "ssh failed: " : "",
		shown.n > 0 ? cgn_buf_z(&shown) : "it printed no reason");
}

static CGN_RC call_end(struct fleet_call *c, int status, struct cgn_err *err)
{
	c->pid = 0;
	if (status != 0)
		return call_fail(c, status, err);
	if (!printed_read(c->out, RACK_REPORT_MAX, &c->output))
		return CGN_FAIL(err, TOO_LARGE, "host %s: its answer is longer than %zu MiB", c->host->name,
			RACK_REPORT_MAX >> 20);
	c->done = true;
	if (c->say[0] != '\0')
		printf("%s: %s\n", c->host->name, c->say);
	return CGN_OK;
}

static void descriptor_close(int *fd)
{
	if (*fd > 0)
		(void)close(*fd);
	*fd = -1;
}

static void call_close(struct fleet_call *c)
{
	descriptor_close(&c->in);
	descriptor_close(&c->out);
	descriptor_close(&c->err);
}

/* Wait for any call that runs. The first failure stays in |err|. */
static void any_await(struct fleet_call *calls, size_t n, cgn_rc *rc, struct cgn_err *err)
{
	int status = 0;
	struct cgn_err why;
	pid_t pid = waitpid(-1, &status, 0);
	for (size_t i = 0; pid > 0 && i < n; i++) {
		if (calls[i].pid != pid)
			continue;
		cgn_rc one = call_end(&calls[i], status_of(status), &why);
		call_close(&calls[i]);
		if (!cgn_ok(one) && cgn_ok(*rc)) {
			*rc = one;
			*err = why;
		}
	}
}

CGN_RC fleet_run(struct fleet *f, struct fleet_call *calls, size_t n, struct cgn_err *err)
{
	cgn_rc rc = CGN_OK;
	for (size_t begun = 0, ended = 0; ended < begun || (cgn_ok(rc) && begun < n);) {
		if (cgn_ok(rc) && begun < n && begun - ended < f->parallel) {
			rc = call_start(f, &calls[begun], err);
			if (cgn_ok(rc))
				begun++;
			else
				call_close(&calls[begun]);
			continue;
		}
		any_await(calls, begun, &rc, err);
		ended = 0;
		for (size_t i = 0; i < begun; i++)
			ended += calls[i].pid == 0;
	}
	return rc;
}

void fleet_call_fini(struct fleet_call *c)
{
	if (c->file > 0)
		(void)close(c->file);
	c->file = 0;
	cgn_buf_fini(&c->input);
	cgn_buf_fini(&c->output);
}

/* ---- the work folder ---- */

CGN_RC fleet_open(struct fleet *f, struct cgn_err *err)
{
	(void)snprintf(f->work, sizeof f->work, "/tmp/cgn-install-XXXXXX"); /* A socket's path is short. */
	return mkdtemp(f->work) != NULL
		? CGN_OK
		: CGN_FAIL(err, STORAGE, "cannot make a folder in /tmp: %s", strerror(errno));
}

void fleet_close(struct fleet *f, const struct rack_host *const *hosts, size_t n)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (size_t i = 0; f->root[0] == '\0' && null >= 0 && i < n; i++) {
		struct words w = {.n = 0};
		ssh_words(&w, f, hosts[i]);
		word_add(&w, "-O");
		word_add(&w, "exit");
		word_add(&w, "--");
		word_add(&w, hosts[i]->ssh != NULL ? hosts[i]->ssh : hosts[i]->address);
		int pid = fleet_start(w.list, null, null, null);
		if (pid > 0)
			(void)fleet_wait(pid);
	}
	if (null >= 0)
		(void)close(null);
	fleet_remove(f->work);
}
