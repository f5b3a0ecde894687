/* SPDX-License-Identifier: Apache-2.0 */
/* net, inside: addresses, the watched socket, the write queue, a connection's fields. */
#pragma once
#include "base/core/buf.h"
#include "io/net/net/addr.h"
#include "io/net/net/name.h"
#include "io/net/net/net.h"
#include "io/net/net/owner.h"

/* ---- wire.c: a descriptor and its poll handle, allocated apart from its owner, because libuv keeps a closed
 * handle for one more turn ---- */
struct net_wire;
typedef void net_wire_fn(void *arg, int status, int events);
/* Takes |fd|, also on failure. */
CGN_RC net_wire_open(struct cgn_loop *l, int fd, net_wire_fn *fn, void *arg, struct net_wire **out,
	struct cgn_err *err);
void net_wire_owner(struct net_wire *w, net_wire_fn *fn, void *arg);
/* Watch for |events| (UV_READABLE ...; 0: none). Cheap when nothing changes. */
void net_wire_watch(struct net_wire *w, int events);
void net_wire_lost(struct net_wire *w); /* libuv stopped watching after an error. */
int net_wire_fd(const struct net_wire *w);
void net_wire_close(struct net_wire **take, bool reset);

/* ---- queue.c: bytes that the socket did not take yet ---- */
struct iovec net_iov(const void *p, size_t n);

struct net_chunk;
struct net_queue {
	struct net_chunk *head, *tail;
	size_t bytes, lent; /* lent: those of |bytes| that lie in the caller's memory. */
};
/* Returns false when out of memory. */
bool net_queue_lend(struct net_queue *q, const void *p, size_t n, struct net_loan *loan);
/* Mark |n| lent bytes as sent or dropped. */
void net_loan_pay(struct net_loan *loan, size_t n);
bool net_queue_add(struct net_queue *q, const void *p, size_t n); /* Returns false when out of memory. */
/* Send as much as the socket takes. Returns 0, or an errno that ends the connection; sets *sent in both
 * cases. */
int net_queue_send(struct net_queue *q, int fd, size_t *sent);
void net_queue_fini(struct net_queue *q);

/* ---- conn.c ---- */
enum net_state {
#define STATE(id, exits, why) NET_##id,
#include "io/net/net/states.def"
#undef STATE
};

struct net_dialing;
struct net_conn {
	uint32_t tag;
	uint8_t state; /* enum net_state; written by conn.c's conn_move alone. */
	bool paused : 1, eof : 1, hung_up : 1, mute : 1, above : 1, corked : 1, held_eof : 1, was_open : 1;
	struct cgn_loop *loop;
	const struct net_conn_ops *ops; /* NULL: callbacks are off. */
	void *user;
	struct net_wire *wire;
	struct net_queue out;
	struct cgn_timer timer; /* Timeout of connect, handshake or flush; open: net_secure_recheck. */
	struct cgn_hook hook;   /* Runs on_close, or delivers bytes held back by a pause. */
	struct cgn_hook exit;   /* Ends an accepted connection that no owner has yet, when the loop ends. */
	struct net_listener *listener; /* NULL: this side dialled. */
	struct net_dialing *dialing;   /* Set until the connection is open. */
	struct net_name *name;         /* This side dialled a host name. */
	uint64_t name_version;         /* For net_name_is. */
	struct tls_session *tls;
	/* Plaintext that was decoded with the data at which the reader paused; at most one scratch buffer. */
	struct cgn_buf *held;
	struct cgn_err *why; /* NULL: a regular end. */
	char peer[56];
};

struct net_conn *net_conn_new(struct cgn_loop *l, const struct net_conn_ops *ops, void *user);
/* The socket is connected: start TLS or open the connection. Takes |wire|. */
void net_conn_connected(struct net_conn *c, struct net_wire **wire, const struct sockaddr *peer,
	struct tls_ctx *tls, const char *server_name);
void net_conn_opened(struct net_conn *c); /* Called once; calls on_open. */
/* End with |why| and drop queued bytes. |reset|: the peer sees a reset. */
void net_conn_fail(struct net_conn *c, const struct cgn_err *why, bool reset);
/* End with |why| after sending the queued bytes (a TLS alert, for example). */
void net_conn_finish(struct net_conn *c, const struct cgn_err *why);
void net_conn_plain(struct net_conn *c, const uint8_t *p, size_t n); /* Deliver plaintext to the reader. */
void net_conn_eof(struct net_conn *c);
/* Write raw bytes to the wire or the queue. */
void net_conn_send(struct net_conn *c, const struct iovec *iov, size_t n);
/* Send as much as the socket takes at once, if the queue is empty. Returns false when the connection
 * failed. */
bool net_conn_try(struct net_conn *c, const struct iovec *iov, size_t n, size_t *sent);
void net_conn_queued(struct net_conn *c); /* Call after adding to |out|. */
void net_conn_fail_memory(struct net_conn *c);
void net_conn_flush(struct net_conn *c); /* Call after uncorking. */
bool net_conn_alive(const struct net_conn *c);

/* ---- dial.c ---- */
void net_dial_cancel(struct net_conn *c); /* Forget the attempt in flight; NULL-safe. */

/* ---- secure.c: TLS between wire and reader ---- */
void net_secure_start(struct net_conn *c, struct tls_ctx *tls, const char *server_name);
void net_secure_read(struct net_conn *c, const uint8_t *p, size_t n);
void net_secure_write(struct net_conn *c, const struct iovec *iov, size_t n);
void net_secure_end(struct net_conn *c);     /* Send close_notify. */
void net_secure_guard(struct net_conn *c);   /* Set the timer that looks whether the peer was revoked. */
void net_secure_recheck(struct net_conn *c); /* End the connection if it was. */
void net_secure_fini(struct net_conn *c);

/* ---- listen.c ---- */
bool net_unix_is_socket(const struct net_addr *a); /* Is there a socket at this path? */
/* A connection of the listener is gone. */
void net_listener_left(struct net_listener *ln, bool tls_failed);
void net_listener_ready(struct net_listener *ln, struct net_conn *c); /* Hand the connection to the user. */

/* ---- inherit.c ---- */
/* Return a descriptor of an inherited socket that is bound to |ai|; -1: there is none. *shared: other listeners of
 * this process accept from the same queue. The listener closes the descriptor. */
int net_inherit_find(const struct addrinfo *ai, bool v6_only, bool *shared);
void net_inherit_offered(int fd); /* Offer a listening socket to the service manager. */

/* ---- linger.c ---- */
/* Read and drop what the peer still sends after our FIN, so that closing does not reset our last bytes
 * away. */
void net_linger(struct cgn_loop *l, struct net_wire **take);

/* ---- listen.c: the file of a Unix socket ---- */
/* Bind over a leftover of a crash; returns 0 or errno. *inode identifies the file for net_unix_unlink (0: no
 * file). */
int net_unix_bind(const struct net_addr *a, int fd, mode_t mode, ino_t *inode);
/* Unlink the file, unless it belongs to another socket by now. */
void net_unix_unlink(const struct net_addr *a, ino_t inode);

/* ---- packet.c ---- */
struct packet_conn;
/* Takes |fd|, also on failure. |left| is called once, when the connection is closed; not on failure. */
CGN_RC packet_conn_open(struct cgn_loop *l, int fd, size_t max_queue, void (*left)(void *arg), void *left_arg,
	struct packet_conn **out, struct cgn_err *err);
bool packet_conn_taken(const struct packet_conn *c);
