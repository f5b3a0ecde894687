/* SPDX-License-Identifier: Apache-2.0 */
/* svc: sd_notify(3): datagrams to the socket that the service manager names. */
#include <stdlib.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "joint/daemon/svc/svc_priv.h"

#define EXTENSION (30 * CGN_SEC) /* More time to start, counted from each request. */

static int manager_dial(const char *path)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	size_t n = strlen(path);
	if ((path[0] != '/' && path[0] != '@') || n >= sizeof sa.sun_path)
		return -1;
	memcpy(sa.sun_path, path, n);
	if (path[0] == '@') /* An abstract name begins with NUL and ends with its length. */
		sa.sun_path[0] = '\0';
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
	if (fd >= 0 && connect(fd, (const struct sockaddr *)&sa, len) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static bool env_u64(const char *name, uint64_t *out)
{
	const char *text = getenv(name);
	return text != NULL && cgn_str_u64(cgn_str_of(text), out);
}

/* Half the period that the manager asks for, as sd_watchdog_enabled(3) advises. */
static cgn_nsec watchdog_period(void)
{
	uint64_t usec = 0, pid = 0;
	if (getenv("WATCHDOG_PID") != NULL && (!env_u64("WATCHDOG_PID", &pid) || pid != (uint64_t)getpid()))
		return 0;
	if (!env_u64("WATCHDOG_USEC", &usec) || usec == 0 || usec > UINT64_MAX / CGN_USEC)
		return 0;
	return usec * CGN_USEC / 2;
}

void svc_notify_open(struct svc_notify *n)
{
	const char *path = getenv("NOTIFY_SOCKET");
	n->fd = path != NULL ? manager_dial(path) : -1;
	n->watchdog = n->fd >= 0 ? watchdog_period() : 0;
	uint64_t room = 0;
	n->stores = n->fd >= 0 && env_u64("FDSTORE", &room) && room > 0;
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
	unsetenv("FDSTORE");
}

void svc_notify_send(const struct svc_notify *n, const char *text)
{
	if (n->fd >= 0) /* A failure is ignored: the daemon runs without a manager. */
		(void)!send(n->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void svc_notify_starting(struct svc_notify *n, cgn_nsec now)
{
	char text[64];
	if (n->extended != 0 && cgn_since(now, n->extended) < CGN_SEC)
		return;
	n->extended = now;
	snprintf(text, sizeof text, "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)(EXTENSION / CGN_USEC));
	svc_notify_send(n, text);
}

void svc_notify_reloading(const struct svc_notify *n, cgn_nsec now)
{
	char text[80];
	snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(now / CGN_USEC));
	svc_notify_send(n, text);
}

/* Send |text| with a descriptor. A socket that the manager has already is kept once: it compares. */
static void notify_send_fd(const struct svc_notify *n, const char *text, int fd)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof fd)];
	} control = {.room = {0}};
	struct iovec iov = {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)};
	struct msghdr m = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof control.room};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	(void)!sendmsg(n->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void svc_notify_store(const struct svc_notify *n, int fd)
{
	struct stat st;
	char text[96];
	if (!n->stores || fstat(fd, &st) != 0)
		return;
	snprintf(text, sizeof text, "FDSTORE=1\nFDNAME=listen-%llu", (unsigned long long)st.st_ino);
	notify_send_fd(n, text, fd);
}

void svc_notify_forget(const struct svc_notify *n, const char *name)
{
	char text[320];
	snprintf(text, sizeof text, "FDSTOREREMOVE=1\nFDNAME=%s", name);
	if (n->stores && name[0] != '\0')
		svc_notify_send(n, text);
}

void svc_notify_close(struct svc_notify *n)
{
	if (n->fd >= 0)
		close(n->fd);
	n->fd = -1;
}
