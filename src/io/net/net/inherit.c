/* SPDX-License-Identifier: Apache-2.0 */
/* inherit: takes listening sockets from the service manager and offers it new ones. */
#include "io/net/net/inherit.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/core/str.h"
#include "net_priv.h"

#define FIRST_FD 3 /* SD_LISTEN_FDS_START */

struct inherited {
	int fd;     /* -1: closed. */
	bool taken; /* A listener has the descriptor. */
	char name[256];
};

static struct {
	struct inherited at[NET_MAX_INHERITED];
	size_t n;
	void (*offer)(void *arg, int fd);
	void *arg;
} inherit;

static int option_get(int fd, int level, int name)
{
	int value = 0;
	socklen_t len = sizeof value;
	return getsockopt(fd, level, name, &value, &len) == 0 ? value : -1;
}

static bool is_tcp_listener(int fd)
{
	int domain = option_get(fd, SOL_SOCKET, SO_DOMAIN);
	return (domain == AF_INET || domain == AF_INET6) &&
		option_get(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM &&
		option_get(fd, SOL_SOCKET, SO_ACCEPTCONN) == 1;
}

static bool env_number(const char *name, uint64_t *out)
{
	const char *text = getenv(name);
	return text != NULL && cgn_str_u64(cgn_str_of(text), out);
}

static void inherit_add(int fd, struct cgn_str name)
{
	if (inherit.n == NET_MAX_INHERITED || !is_tcp_listener(fd)) {
		close(fd);
		return;
	}
	(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
	(void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	struct inherited *s = &inherit.at[inherit.n++];
	*s = (struct inherited){.fd = fd};
	if (!cgn_str_copyz(s->name, sizeof s->name, name))
		s->name[0] = '\0';
}

void net_inherit_begin(void)
{
	uint64_t pid = 0, count = 0;
	const char *text = getenv("LISTEN_FDNAMES");
	struct cgn_str names = cgn_str_of(text != NULL ? text : "");
	if (env_number("LISTEN_PID", &pid) && pid == (uint64_t)getpid() && env_number("LISTEN_FDS", &count) &&
		count <= INT16_MAX)
		for (int i = 0; i < (int)count; i++)
			inherit_add(FIRST_FD + i, cgn_str_split(&names, ':'));
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
}

void net_inherit_end(void (*unused)(void *arg, const char *name), void *arg)
{
	for (size_t i = 0; i < inherit.n; i++) {
		struct inherited *s = &inherit.at[i];
		if (s->taken)
			continue;
		close(s->fd);
		if (unused != NULL)
			unused(arg, s->name);
	}
	inherit.n = 0;
}

void net_inherit_offer(void (*fn)(void *arg, int fd), void *arg)
{
	inherit.offer = fn;
	inherit.arg = arg;
}

void net_inherit_offered(int fd)
{
	if (inherit.offer != NULL)
		inherit.offer(inherit.arg, fd);
}

static bool is_bound_to(int fd, const struct addrinfo *ai, bool v6_only)
{
	struct sockaddr_storage sa = {0};
	socklen_t len = sizeof sa;
	if (getsockname(fd, (struct sockaddr *)&sa, &len) != 0 || sa.ss_family != ai->ai_family)
		return false;
	if (sa.ss_family == AF_INET) {
		struct sockaddr_in is, want;
		memcpy(&is, &sa, sizeof is);
		memcpy(&want, ai->ai_addr, sizeof want);
		return is.sin_port == want.sin_port && is.sin_addr.s_addr == want.sin_addr.s_addr;
	}
	struct sockaddr_in6 is, want;
	memcpy(&is, &sa, sizeof is);
	memcpy(&want, ai->ai_addr, sizeof want);
	return is.sin6_port == want.sin6_port &&
		memcmp(&is.sin6_addr, &want.sin6_addr, sizeof is.sin6_addr) == 0 &&
		is.sin6_scope_id == want.sin6_scope_id &&
		option_get(fd, IPPROTO_IPV6, IPV6_V6ONLY) == v6_only;
}

int net_inherit_find(const struct addrinfo *ai, bool v6_only, bool *shared)
{
	struct inherited *again = NULL;
	for (size_t i = 0; i < inherit.n; i++) {
		struct inherited *s = &inherit.at[i];
		if (!is_bound_to(s->fd, ai, v6_only))
			continue;
		*shared = option_get(s->fd, SOL_SOCKET, SO_REUSEPORT) != 1;
		if (!s->taken) {
			s->taken = true;
			return s->fd;
		}
		if (*shared)
			again = s;
	}
	return again != NULL ? fcntl(again->fd, F_DUPFD_CLOEXEC, 0) : -1;
}
