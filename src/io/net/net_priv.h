/* SPDX-License-Identifier: Apache-2.0 */
/* net, inside: addresses, the watched socket, the write queue, a connection's fields. */
#pragma once
#include "base/core/buf.h"
#include "io/net/addr.h"
#include "io/net/net.h"

/* ---- wire.c: a descriptor and its poll handle. Allocated apart from its owner, because libuv keeps a closed
 * handle for one more turn. */
struct net_wire;
typedef void net_wire_fn(void *arg, int status, int events);
/* Takes |fd|, also on failure. */
CGN_RC net_wire_open(struct cgn_loop *l, int fd, net_wire_fn *fn, void *arg, struct net_wire **out,
	struct cgn_err *err);
void net_wire_owner(struct net_wire *w, net_wire_fn *fn, void *arg);
/* UV_READABLE ...; 0: none. Cheap when nothing changes */
void net_wire_watch(struct net_wire *w, int events);
void net_wire_lost(struct net_wire *w); /* libuv stopped watching after an error */
int net_wire_fd(const struct net_wire *w);
void net_wire_close(struct net_wire **take, bool reset);

/* ---- queue.c: bytes that the socket did not take yet ---- */
struct net_chunk;
struct net_queue {
	struct net_chunk *head, *tail;
	size_t bytes, lent; /* lent: those of them that lie elsewhere */
};
/* false: no memory */
bool net_queue_lend(struct net_queue *q, const void *p, size_t n, struct net_loan *loan);
void net_loan_pay(struct net_loan *loan, size_t n);               /* so many of its bytes are done with */
bool net_queue_add(struct net_queue *q, const void *p, size_t n); /* false: no memory */
/* Send what the socket takes: 0, or an errno that ends the connection. *sent is set in both cases. */
int net_queue_send(struct net_queue *q, int fd, size_t *sent);
void net_queue_fini(struct net_queue *q);

/* ---- parts.c ---- */
struct iovec net_iov(const void *p, size_t n);

/* ---- conn.c ---- */
enum net_state {
	NET_DIALING,   /* resolving or connecting: dial.c owns what happens */
	NET_HANDSHAKE, /* connected, TLS under way */
	NET_OPEN,
	NET_FLUSHING, /* closing: writes what is queued, reads nothing */
	NET_ENDED,    /* no wire any more; on_close is due at the end of the turn */
};

struct net_dialing;
struct net_conn {
	uint32_t tag;
	uint8_t state; /* enum net_state; written by conn.c's move() alone */
	bool paused : 1, eof : 1, hung_up : 1, mute : 1, above : 1, corked : 1, held_eof : 1, was_open : 1;
	struct cgn_loop *loop;
	const struct net_conn_ops *ops; /* NULL: nobody listens any more */
	void *user;
	struct net_wire *wire;
	struct net_queue out;
	struct cgn_timer timer;        /* connect, handshake or flush */
	struct cgn_hook hook;          /* on_close, or bytes held back by a pause */
	struct net_listener *listener; /* NULL: we dialled */
	struct net_dialing *dialing;   /* until open */
	struct tls_session *tls;
	/* plaintext that came in one piece with what the reader paused at; at most one scratch buffer */
	struct cgn_buf *held;
	struct cgn_err *why; /* NULL: a proper end */
	char peer[56];
};

struct net_conn *net_conn_new(struct cgn_loop *l, const struct net_conn_ops *ops, void *user);
/* The socket is connected: TLS or open. Takes |wire|. */
void net_conn_connected(struct net_conn *c, struct net_wire **wire, const struct sockaddr *peer,
	struct tls_ctx *tls, const char *server_name);
void net_conn_opened(struct net_conn *c); /* once; calls on_open */
/* End with |why|; queued bytes are dropped. |reset|: the peer sees a reset. */
void net_conn_fail(struct net_conn *c, const struct cgn_err *why, bool reset);
/* End with |why| after what is queued went out (a TLS alert, say). */
void net_conn_finish(struct net_conn *c, const struct cgn_err *why);
void net_conn_plain(struct net_conn *c, const uint8_t *p, size_t n); /* bytes for the reader */
void net_conn_eof(struct net_conn *c);
/* raw bytes to the wire or the queue */
void net_conn_send(struct net_conn *c, const struct iovec *iov, size_t n);
/* What the socket takes at once, when nothing waits before it; false: the connection failed. */
bool net_conn_try(struct net_conn *c, const struct iovec *iov, size_t n, size_t *sent);
void net_conn_queued(struct net_conn *c); /* after something was added to |out| */
void net_conn_fail_memory(struct net_conn *c);
void net_conn_flush(struct net_conn *c); /* after uncorking */
bool net_conn_alive(const struct net_conn *c);

/* ---- dial.c ---- */
void net_dial_cancel(struct net_conn *c); /* NULL-safe; forgets the attempt under way */

/* ---- secure.c: TLS between wire and reader ---- */
void net_secure_start(struct net_conn *c, struct tls_ctx *tls, const char *server_name);
void net_secure_read(struct net_conn *c, const uint8_t *p, size_t n);
void net_secure_write(struct net_conn *c, const struct iovec *iov, size_t n);
void net_secure_end(struct net_conn *c); /* close_notify */
void net_secure_fini(struct net_conn *c);

/* ---- listen.c ---- */
bool net_unix_is_socket(const struct net_addr *a);                    /* a path where one is */
void net_listener_left(struct net_listener *ln, bool tls_failed);     /* one of its connections is gone */
void net_listener_ready(struct net_listener *ln, struct net_conn *c); /* hand it to the user */

/* ---- linger.c ---- */
/* Read and drop what the peer still sends after our FIN, so that closing does not reset our last bytes
 * away. */
void net_linger(struct cgn_loop *l, struct net_wire **take);

/* ---- owner.c: who holds a listening port, from /proc ---- */
enum net_owner { NET_OWNER_UNKNOWN, NET_OWNER_SELF, NET_OWNER_OTHER };
/* |who| gets "pid 4711 (nginx)", "this process", or "" when the process is not visible. */
enum net_owner net_port_owner(unsigned port, char *who, size_t cap);

/* ---- listen.c: the file of a Unix socket ---- */
/* Bind, over what a crash left behind; 0 or errno. *inode is what was made, for net_unix_unlink (0:
 * nothing). */
int net_unix_bind(const struct net_addr *a, int fd, mode_t mode, ino_t *inode);
void net_unix_unlink(const struct net_addr *a, ino_t inode); /* unless the file is somebody else's by now */

/* ---- packet.c ---- */
struct packet_conn;
/* Takes |fd|, also on failure. |left| once, when it is closed; not on failure. */
CGN_RC packet_conn_open(struct cgn_loop *l, int fd, size_t max_queue, void (*left)(void *arg), void *left_arg,
	struct packet_conn **out, struct cgn_err *err);
bool packet_conn_taken(const struct packet_conn *c);
