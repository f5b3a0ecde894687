/* SPDX-License-Identifier: Apache-2.0 */
/* place: how a program is found again after its owner was killed. PLACE.sock is the keeper's socket. PLACE.run names the
 * keeper, whose pid is the session of the program's processes: "boot-id pid start-time". */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "io/os/proc/proc_priv.h"

#define PATH_BYTES      4200
#define ANSWER_MS       1000
#define STRAY_ROUNDS    50
#define STRAY_WAIT_NS   2000000
#define BOOT_ID_FILE    "/proc/sys/kernel/random/boot_id"
#define BOOT_ID_LETTERS 36
#define NETWORK_FILE    "/proc/self/ns/net"

/* A Unix socket's path has at most 107 bytes, so name it below the folder's descriptor. Returns the descriptor, or -1 and
 * errno. */
static int place_address(const char *place, struct sockaddr_un *out)
{
	char dir[PATH_BYTES];
	const char *name = strrchr(place, '/');
	if (name == NULL ||
		!cgn_str_copyz(dir, sizeof dir, (struct cgn_str){place, (size_t)(name - place)})) {
		errno = ENAMETOOLONG;
		return -1;
	}
	int fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	out->sun_family = AF_UNIX;
	int n = snprintf(out->sun_path, sizeof out->sun_path, "/proc/self/fd/%d/%s.sock", fd, name + 1);
	if (n > 0 && (size_t)n < sizeof out->sun_path)
		return fd;
	(void)close(fd);
	errno = ENAMETOOLONG;
	return -1;
}

CGN_RC proc_place_listen(const char *place, int *out, struct cgn_err *err)
{
	struct sockaddr_un a = {0};
	int dir = place_address(place, &a);
	if (dir < 0)
		return CGN_FAIL(err, STORAGE, "%s.sock: %s", place, strerror(errno));
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	(void)unlink(a.sun_path);
	bool ok = fd >= 0 && bind(fd, (const struct sockaddr *)&a, sizeof a) == 0 &&
		chmod(a.sun_path, 0600) == 0 && listen(fd, 8) == 0;
	int e = errno;
	(void)close(dir);
	if (ok) {
		*out = fd;
		return CGN_OK;
	}
	if (fd >= 0)
		(void)close(fd);
	return CGN_FAIL(err, STORAGE, "%s.sock: %s", place, strerror(e));
}

/* ---- the note ---- */

struct stat_facts {
	pid_t parent, session;
	unsigned long long start; /* Clock ticks since the boot */
	char state;
};

/* Read /proc/PID/stat. False: there is no such process. */
static bool stat_read(pid_t pid, struct stat_facts *out)
{
	char path[64], text[1024];
	long parent = 0, session = 0;
	(void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t n = read(fd, text, sizeof text - 1);
	(void)close(fd);
	if (n <= 0)
		return false;
	text[n] = '\0';
	const char *rest = strrchr(text, ')'); /* The name before it may hold anything. */
	if (rest == NULL ||
		sscanf(rest,
			") %c %ld %*d %ld %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
			&out->state, &parent, &session, &out->start) != 4)
		return false;
	out->parent = (pid_t)parent;
	out->session = (pid_t)session;
	return true;
}

static bool boot_id(char out[BOOT_ID_LETTERS + 1])
{
	int fd = open(BOOT_ID_FILE, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, out, BOOT_ID_LETTERS) : -1;
	if (fd >= 0)
		(void)close(fd);
	out[BOOT_ID_LETTERS] = '\0';
	return n == BOOT_ID_LETTERS;
}

bool proc_host_id(char *out, size_t size)
{
	char boot[BOOT_ID_LETTERS + 1], network[64];
	ssize_t n = readlink(NETWORK_FILE, network, sizeof network - 1);
	if (n <= 0 || !boot_id(boot))
		return false;
	network[n] = '\0';
	int made = snprintf(out, size, "%s %s", boot, network);
	return made > 0 && (size_t)made < size;
}

static bool place_path(const char *place, const char *ending, char out[PATH_BYTES])
{
	int n = snprintf(out, PATH_BYTES, "%s%s", place, ending);
	return n > 0 && n < PATH_BYTES;
}

void proc_place_note(const char *place, pid_t keeper)
{
	char path[PATH_BYTES], text[128], boot[BOOT_ID_LETTERS + 1];
	struct stat_facts facts;
	if (!place_path(place, ".run", path) || !boot_id(boot) || !stat_read(keeper, &facts))
		return;
	int n = snprintf(text, sizeof text, "%s %d %llu\n", boot, (int)keeper, facts.start);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	(void)!write(fd, text, (size_t)n);
	(void)close(fd);
}

void proc_place_clear(const char *place)
{
	char path[PATH_BYTES];
	if (place == NULL)
		return;
	if (place_path(place, ".run", path))
		(void)unlink(path);
	if (place_path(place, ".sock", path))
		(void)unlink(path);
}

/* Read the note of this boot. */
static bool note_read(const char *place, pid_t *keeper, unsigned long long *start)
{
	char path[PATH_BYTES], text[128], boot[BOOT_ID_LETTERS + 1];
	int pid = 0;
	if (!place_path(place, ".run", path) || !boot_id(boot))
		return false;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
	if (fd >= 0)
		(void)close(fd);
	if (n <= BOOT_ID_LETTERS || memcmp(text, boot, BOOT_ID_LETTERS) != 0)
		return false;
	text[n] = '\0';
	if (sscanf(text + BOOT_ID_LETTERS, " %d %llu", &pid, start) != 2 || pid <= 1)
		return false;
	*keeper = (pid_t)pid;
	return true;
}

/* ---- strays ---- */

static bool is_ours(pid_t pid)
{
	char path[64];
	struct stat st;
	(void)snprintf(path, sizeof path, "/proc/%d", (int)pid);
	return stat(path, &st) == 0 && st.st_uid == geteuid();
}

/* Kill the processes of the session, which began at |start|; return how many there were. */
static size_t session_kill(pid_t session, unsigned long long start)
{
	size_t n = 0;
	const struct dirent *d;
	DIR *proc = opendir("/proc");
	if (proc == NULL)
		return 0;
	while ((d = readdir(proc)) != NULL) {
		struct stat_facts f;
		pid_t pid = (pid_t)strtol(d->d_name, NULL, 10);
		if (pid <= 1 || !stat_read(pid, &f) || f.session != session || f.start < start ||
			f.state == 'Z' || !is_ours(pid))
			continue;
		n++;
		(void)kill(pid, SIGKILL);
	}
	(void)closedir(proc);
	return n;
}

/* A session that has members keeps its number, so the number means the same session as long as its leader, the keeper, is
 * gone. A living process of that number is the keeper itself, which kills by itself, or a stranger that came later. */
size_t proc_end_strays(const char *place)
{
	pid_t keeper = 0;
	unsigned long long start = 0;
	struct stat_facts f;
	size_t first = 0;
	if (!note_read(place, &keeper, &start) || (stat_read(keeper, &f) && f.state != 'Z'))
		return 0;
	for (int round = 0; round < STRAY_ROUNDS; round++) {
		size_t n = session_kill(keeper, start);
		if (round == 0)
			first = n;
		if (n == 0)
			break;
		(void)nanosleep(&(struct timespec){.tv_nsec = STRAY_WAIT_NS}, NULL);
	}
	return first;
}

/* ---- the call ---- */

static bool card_receive(int fd, struct keeper_card *card, int fds[2])
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} control;
	struct iovec iov = {.iov_base = card, .iov_len = sizeof *card};
	struct msghdr m = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof control.bytes};
	struct pollfd p = {.fd = fd, .events = POLLIN};
	if (poll(&p, 1, ANSWER_MS) != 1 || recvmsg(fd, &m, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *card)
		return false;
	const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	if (c != NULL && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(2 * sizeof(int)))
		memcpy(fds, CMSG_DATA(c), 2 * sizeof(int));
	card->word[sizeof card->word - 1] = '\0';
	return true;
}

static void close_all(int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (fds[i] >= 0)
			(void)close(fds[i]);
}

CGN_RC proc_place_call(const char *place, struct keeper_card *card, int *control, int *out, int *err_fd,
	struct cgn_err *err)
{
	struct sockaddr_un a = {0};
	int dir = place_address(place, &a), fds[3] = {-1, -1, -1};
	if (dir < 0)
		return CGN_FAIL(err, NOT_FOUND, "%s.sock: %s", place, strerror(errno));
	fds[2] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	bool called = fds[2] >= 0 && connect(fds[2], (const struct sockaddr *)&a, sizeof a) == 0;
	int e = errno;
	(void)close(dir);
	if (!called) {
		close_all(fds, 3);
		return CGN_FAIL(err, NOT_FOUND, "%s.sock: %s", place, strerror(e));
	}
	bool answered = card_receive(fds[2], card, fds);
	if (answered && card->kind == KEEPER_CARD && fds[0] >= 0 && fds[1] >= 0 &&
		fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0 && fcntl(fds[1], F_SETFL, O_NONBLOCK) == 0) {
		*out = fds[0];
		*err_fd = fds[1];
		*control = fds[2];
		return CGN_OK;
	}
	close_all(fds, 3);
	return CGN_FAIL(err, CONFLICT, "the process at %s.sock %s", place,
		answered ? "belongs to another agent or is ending" : "does not answer");
}
