/* SPDX-License-Identifier: Apache-2.0 */
/* svc: sd_notify(3): datagrams to the socket that the service manager names. */
#include <stdlib.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/un.h>

#include "joint/svc/svc_priv.h"

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
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
}

void svc_notify_send(const struct svc_notify *n, const char *text)
{
	if (n->fd >= 0) /* A failure is ignored: the daemon runs without a manager. */
		(void)!send(n->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void svc_notify_reloading(const struct svc_notify *n, cgn_nsec now)
{
	char text[80];
	snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(now / CGN_USEC));
	svc_notify_send(n, text);
}

void svc_notify_close(struct svc_notify *n)
{
	if (n->fd >= 0)
		close(n->fd);
	n->fd = -1;
}
