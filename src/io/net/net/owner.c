/* SPDX-License-Identifier: Apache-2.0 */
/* owner: find in /proc which process listens on a port, for the error message when a port is taken. Each worker asks
 * whether it is this process, which is told without /proc/net/tcp: a read of that walks over all connections of the
 * machine. */
#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net_priv.h"

#define INODES_MOST      64
#define TCP_LISTEN_STATE 0x0a

struct inodes {
	uint64_t id[INODES_MOST]; /* Several workers may share a port. */
	size_t n;
};

/* A line is "  0: 0100007F:1F90 00000000:0000 0A ..."; the tenth word is the inode. */
static void take_line(const char *line, unsigned port, struct inodes *in)
{
	unsigned local = 0, state = 0;
	uint64_t inode = 0;
	int n = sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*u %*d %" SCNu64,
		&local, &state, &inode);
	if (n == 3 && local == port && state == TCP_LISTEN_STATE && in->n < INODES_MOST)
		in->id[in->n++] = inode;
}

static void scan_table(const char *path, unsigned port, struct inodes *in)
{
	FILE *f = fopen(path, "re");
	char line[512];
	if (f == NULL)
		return;
	while (fgets(line, sizeof line, f) != NULL)
		take_line(line, port, in);
	(void)fclose(f);
}

static bool is_one_of(const char *link, const struct inodes *in)
{
	uint64_t inode = 0;
	if (sscanf(link, "socket:[%" SCNu64 "]", &inode) != 1)
		return false;
	for (size_t i = 0; i < in->n; i++)
		if (in->id[i] == inode)
			return true;
	return false;
}

/* Does a descriptor of process |pid| refer to one of the sockets? */
static bool process_holds(const char *pid, const struct inodes *in)
{
	char path[512], link[64];
	bool found = false;
	(void)snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
	DIR *d = opendir(path);
	if (d == NULL)
		return false;
	for (struct dirent *e; !found && (e = readdir(d)) != NULL;) {
		(void)snprintf(path, sizeof path, "/proc/%.20s/fd/%.20s", pid, e->d_name);
		ssize_t n = readlink(path, link, sizeof link - 1);
		link[n > 0 ? n : 0] = '\0';
		found = is_one_of(link, in);
	}
	(void)closedir(d);
	return found;
}

static void process_describe(const char *pid, char *who, size_t cap)
{
	char path[64], name[64] = "";
	(void)snprintf(path, sizeof path, "/proc/%.20s/comm", pid);
	FILE *f = fopen(path, "re");
	if (f != NULL) {
		if (fgets(name, sizeof name, f) == NULL)
			name[0] = '\0';
		(void)fclose(f);
	}
	name[strcspn(name, "\n")] = '\0';
	(void)snprintf(who, cap, "pid %.20s%s%s%s", pid, name[0] != '\0' ? " (" : "", name,
		name[0] != '\0' ? ")" : "");
}

static bool listens_on(int fd, unsigned port)
{
	struct sockaddr_in6 at = {.sin6_family = AF_UNSPEC}; /* sockaddr_in has its port at the same place. */
	socklen_t at_len = sizeof at, listens_len = sizeof(int);
	int listens = 0;
	return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_len) == 0 && listens == 1 &&
		getsockname(fd, (struct sockaddr *)&at, &at_len) == 0 &&
		(at.sin6_family == AF_INET || at.sin6_family == AF_INET6) && ntohs(at.sin6_port) == port;
}

static bool self_listens(unsigned port)
{
	bool found = false;
	DIR *d = opendir("/proc/self/fd");
	if (d == NULL)
		return false;
	for (struct dirent *e; !found && (e = readdir(d)) != NULL;)
		found = isdigit((unsigned char)e->d_name[0]) &&
			listens_on((int)strtol(e->d_name, NULL, 10), port);
	(void)closedir(d);
	return found;
}

enum net_owner net_port_owner(unsigned port, char *who, size_t cap)
{
	struct inodes in = {.n = 0};
	who[0] = '\0';
	if (self_listens(port)) {
		(void)snprintf(who, cap, "this process");
		return NET_OWNER_SELF;
	}
	scan_table("/proc/net/tcp", port, &in);
	scan_table("/proc/net/tcp6", port, &in);
	if (in.n == 0)
		return NET_OWNER_UNKNOWN;
	DIR *d = opendir("/proc");
	if (d == NULL)
		return NET_OWNER_UNKNOWN;
	for (struct dirent *e; who[0] == '\0' && (e = readdir(d)) != NULL;)
		if (isdigit((unsigned char)e->d_name[0]) && process_holds(e->d_name, &in))
			process_describe(e->d_name, who, cap);
	(void)closedir(d);
	return NET_OWNER_OTHER;
}
