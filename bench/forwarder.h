/* SPDX-License-Identifier: Apache-2.0 */
/* forwarder: a thread that passes the bytes of one TCP connection on, as little as a hop can do: one read and one write
 * of a request, and of its answer. What a relay adds is compared with it. */
#pragma once
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FORWARD_BYTES ((size_t)1024 * 1024)

struct forwarder {
	pthread_t thread;
	int listener;
	uint16_t port;           /* Where it listens, on 127.0.0.1. */
	struct sockaddr_in next; /* Where it passes bytes on to. */
};

static inline bool forward_bytes(int from, int to, char *room)
{
	ssize_t n = recv(from, room, FORWARD_BYTES, 0);
	return n > 0 && send(to, room, (size_t)n, MSG_NOSIGNAL) == n;
}

static inline void *forward_run(void *arg)
{
	struct forwarder *f = arg;
	char *room = malloc(FORWARD_BYTES);
	int one = 1, client = accept(f->listener, NULL, NULL), next = socket(AF_INET, SOCK_STREAM, 0);
	bool on = room != NULL && client >= 0 && next >= 0 &&
		connect(next, (struct sockaddr *)&f->next, sizeof f->next) == 0;
	(void)setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	(void)setsockopt(next, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	struct pollfd fds[] = {{client, POLLIN, 0}, {next, POLLIN, 0}};
	while (on && poll(fds, 2, -1) > 0) {
		on = fds[0].revents == 0 || forward_bytes(client, next, room);
		on = on && (fds[1].revents == 0 || forward_bytes(next, client, room));
	}
	(void)close(client);
	(void)close(next);
	free(room);
	return NULL;
}

/* Pass bytes on to |next|, "127.0.0.1:PORT". False: no socket or thread. */
static inline bool forwarder_start(struct forwarder *f, const char *next)
{
	const char *port = strrchr(next, ':');
	socklen_t n = sizeof f->next;
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	f->next = own;
	f->next.sin_port = htons((uint16_t)(port != NULL ? strtoul(port + 1, NULL, 10) : 0));
	f->listener = socket(AF_INET, SOCK_STREAM, 0);
	if (f->listener < 0 || bind(f->listener, (struct sockaddr *)&own, sizeof own) != 0 ||
		listen(f->listener, 1) != 0 || getsockname(f->listener, (struct sockaddr *)&own, &n) != 0)
		return false;
	f->port = ntohs(own.sin_port);
	return pthread_create(&f->thread, NULL, forward_run, f) == 0;
}
