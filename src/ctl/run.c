/* SPDX-License-Identifier: Apache-2.0 */
/* run: starts programs of the system, and waits for them. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ctl/run.h"
#include "io/os/loop/loop.h"

#define OUTPUT_LIMIT ((size_t)1 << 20)

CGN_RC ctl_run_self(char out[PATH_MAX], struct cgn_err *err)
{
	ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
	out[n > 0 ? n : 0] = '\0';
	return n > 0 ? CGN_OK : CGN_FAIL(err, INTERNAL, "cannot find this program: %s", strerror(errno));
}

CGN_RC ctl_run_folder(char out[PATH_MAX], struct cgn_err *err)
{
	CGN_TRY(ctl_run_self(out, err));
	*strrchr(out, '/') = '\0';
	return CGN_OK;
}

static bool command_start(const char *const *argv, int out_fd, pid_t *pid)
{
	posix_spawn_file_actions_t actions;
	if (posix_spawn_file_actions_init(&actions) != 0)
		return false;
	bool fine = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0) == 0 &&
		posix_spawn_file_actions_adddup2(&actions, out_fd, 1) == 0 &&
		posix_spawn_file_actions_adddup2(&actions, out_fd, 2) == 0 &&
		posix_spawnp(pid, argv[0], &actions, NULL, (char *const *)(uintptr_t)argv, environ) == 0;
	(void)posix_spawn_file_actions_destroy(&actions);
	return fine;
}

/* Read until the end; false: it took too long. */
static bool command_read(int fd, cgn_nsec end, struct cgn_buf *out)
{
	for (;;) {
		cgn_nsec now = cgn_clock_now();
		struct pollfd p = {.fd = fd, .events = POLLIN};
		if (now >= end || poll(&p, 1, (int)((end - now) / CGN_MSEC) + 1) < 0)
			return false;
		char *to = cgn_buf_room(out, 4096);
		if (to == NULL)
			return false;
		ssize_t n = p.revents != 0 ? read(fd, to, 4096) : -1;
		if (n > 0)
			cgn_buf_grew(out, (size_t)n);
		if (n == 0)
			return true;
	}
}

int ctl_run_read(const char *const *argv, cgn_nsec most, struct cgn_buf *out)
{
	int fds[2], status = 0;
	pid_t pid;
	if (out->limit == 0)
		out->limit = OUTPUT_LIMIT;
	if (pipe2(fds, O_CLOEXEC) != 0)
		return -1;
	bool started = command_start(argv, fds[1], &pid);
	(void)close(fds[1]);
	if (started && !command_read(fds[0], cgn_clock_now() + most, out))
		(void)kill(pid, SIGKILL);
	(void)close(fds[0]);
	if (!started)
		return -1;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* In the child: give the bytes as a file on descriptor 0. */
static void input_place(const struct cgn_str *input)
{
	int fd = memfd_create("input", 0);
	if (fd < 0 || write(fd, input->p, input->n) != (ssize_t)input->n || lseek(fd, 0, SEEK_SET) != 0 ||
		dup2(fd, STDIN_FILENO) < 0)
		_exit(127);
}

int ctl_run_shown(char *const argv[], const struct cgn_str *input)
{
	int status = 0;
	(void)fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		if (input != NULL)
			input_place(input);
		(void)execvp(argv[0], argv);
		_exit(127);
	}
	while (pid > 0 && waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return 127;
	return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 127;
}
