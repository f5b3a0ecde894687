/* SPDX-License-Identifier: Apache-2.0 */
/* sock, inside: one end of a connection, a listener, or a port for datagrams. */
#pragma once
#include <netinet/in.h>

#include "world_priv.h"

enum sock_state { SOCK_NEW, SOCK_LISTENS, SOCK_CONNECTS, SOCK_CONNECTED, SOCK_OVER };
struct sock {
	struct world_host *host;
	int family, kind; /* AF_*; SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM */
	unsigned id;
	enum sock_state state;
	uint32_t ip, peer_ip; /* Host byte order */
	uint16_t port, peer_port;
	char path[108];
	ino_t inode;             /* Number of a Unix socket's file */
	struct sock *peer;       /* The other end, also when its descriptor is closed */
	struct cgn_buf rx;       /* Bytes that have arrived */
	size_t coming, limit;    /* Bytes on their way here; the most that may be here or on their way */
	struct cgn_link transit; /* segment.link */
	uint64_t last, armed;
	bool ended;              /* The other end sends no more, and all of it has arrived */
	bool shut;               /* This end sends no more */
	bool closed;             /* No descriptor is left */
	bool lingers_not;        /* SO_LINGER of 0 */
	bool shares;             /* SO_REUSEPORT */
	int error;               /* SO_ERROR */
	struct cgn_link accepts; /* sock.pending */
	struct cgn_link pending, bound;
	struct cgn_link watches;
	struct cgn_link packets;
};
struct packet {
	struct cgn_link link;
	struct sockaddr_in from;
	struct object *passed;
	size_t n;
	char bytes[];
};

struct sock *sock_new(struct world_host *h, int family, int kind);
void sock_pair(struct world_host *h, int kind, struct sock *out[2]);
int sock_bind(struct sock *s, const struct sockaddr *sa);    /* 0 or an errno */
int sock_connect(struct sock *s, const struct sockaddr *sa); /* 0, EINPROGRESS or another errno */
struct sock *sock_accept(struct sock *s);                    /* NULL: none waits */
void sock_address(const struct sock *s, bool peer, struct sockaddr *out, socklen_t *len);
int sock_shutdown(struct sock *s); /* Send no more; 0 or an errno */
/* Bytes, or -1 with errno; EAGAIN: not now */
ssize_t sock_send(struct sock *s, const struct msghdr *m);
ssize_t sock_send_packet(struct sock *s, const struct msghdr *m,
	struct object *passed); /* Takes |passed| over */
ssize_t sock_send_datagram(struct sock *s, const struct msghdr *m);
ssize_t sock_recv(struct sock *s, void *p, size_t n, bool peek);
struct packet *sock_packet(struct sock *s); /* The first one that has arrived, or NULL */
void packet_free(struct packet *k);

/* ---- file.c ---- */
ino_t file_socket(struct world_host *h,
	const char *path); /* Make the file of a Unix socket; 0: there is a file */
bool file_exists(struct world_host *h, const char *path);
