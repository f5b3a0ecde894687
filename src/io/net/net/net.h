/* SPDX-License-Identifier: Apache-2.0 */
/* net: byte streams over TCP and Unix sockets, in clear or over TLS. Handles addresses, queues and deadlines,
 * no protocol. A connection belongs to the loop it was made on. */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "io/net/tls/tls.h"
#include "io/os/loop/loop.h"

/* Addresses are texts: "host:port", "[v6]:port", "unix:/path". */
/* Check the address' shape only, without resolving it. */
CGN_RC net_addr_check(const char *addr, struct cgn_err *err);

struct net_conn;
struct net_conn_ops {
	/* Connected, with TLS done; on a server it follows on_accept at once. May be NULL. */
	void (*on_open)(struct net_conn *c, void *user);
	/* Bytes from the peer; borrowed. */
	void (*on_data)(struct net_conn *c, void *user, const uint8_t *p, size_t n);
	/* The peer ended its side. Optional: NULL closes the connection. */
	void (*on_eof)(struct net_conn *c, void *user);
	/* The peer ended its side while reading is paused, and unread bytes lie before that end; on_eof
	 * follows after them, once net_resume was called. Lets a writer to this peer learn early that the
	 * peer is gone. Called once at most; may be NULL. */
	void (*on_hangup)(struct net_conn *c, void *user);
	/* The write queue fell to half of its high-water mark or below; may be NULL. */
	void (*on_drain)(struct net_conn *c, void *user);
	/* The last callback, called exactly once for each connection that was accepted or for which
	 * net_connect succeeded; why->code == CGN_FINE after net_close was flushed. |c| is freed when this
	 * returns. */
	void (*on_close)(struct net_conn *c, void *user, const struct cgn_err *why);
};

struct net_dial {
	const char *addr;
	struct tls_ctx *tls;      /* NULL: in clear */
	const char *server_name;  /* TLS: the name to verify; NULL: the host part of addr. */
	cgn_nsec connect_timeout; /* Timeout of name resolution, TCP and TLS together; 0: 5 s. */
};
/* Start a connection. Never calls back before it returned. */
CGN_RC net_connect(struct cgn_loop *l, const struct net_dial *d, const struct net_conn_ops *ops, void *user,
	struct net_conn **out, struct cgn_err *err);

struct net_listener;
struct net_listen_cfg {
	const char *addr;
	/* Name of the setting that |addr| comes from ("kv.listen"), for error messages; may be NULL. Used
	 * during the call only. */
	const char *setting;
	struct tls_ctx *tls;
	bool reuse_port; /* Several loops listen on one port. */
	bool keep;       /* TCP: the service manager keeps the socket over a restart (inherit.h). */
	/* Per listener; further connections are closed at once and counted. 0: 65536. */
	unsigned max_conns;
	/* Operators reach the program here: connections are accepted as long as there is a descriptor. Other
	 * listeners rest when few are left, so that there are some for this one, for calls and for files. */
	bool essential;
	cgn_nsec tls_timeout; /* Timeout of the TLS handshake; 0: 5 s. */
	mode_t unix_mode;     /* 0: 0660 */
	/* Accept from the socket of this listener, which belongs to another loop: several loops then serve
	 * one Unix socket. |addr| names the same address. Call before the other loop runs, or on its thread;
	 * each listener is closed on its own loop, in any order. NULL: none. */
	struct net_listener *with;
};
/* Listen. |on_accept| is called once TLS is done (a failed handshake is only counted); it must call
 * net_conn_take before it returns, or the connection is closed. CGN_ADDRESS_IN_USE names the address and,
 * where /proc tells, the process that has it. */
CGN_RC net_listen(struct cgn_loop *l, const struct net_listen_cfg *cfg,
	void (*on_accept)(void *user, struct net_conn *c), void *user, struct net_listener **out,
	struct cgn_err *err);
/* Accept the connections that wait in the kernel's queue; net_listener_close resets those that still do. */
void net_listener_empty(struct net_listener *ln);
void net_listener_close(struct net_listener **take); /* Stop listening; existing connections live on. */
/* Return the port, also when the listener was bound to port 0. */
unsigned net_listener_port(const struct net_listener *ln);
struct net_listener_stats {
	uint64_t accepted, refused /* Connections closed because of max_conns. */,
		exhausted /* How often accepting rested for 100 ms because few descriptors were left. */;
	uint64_t tls_failed; /* Failed TLS handshakes. */
	uint32_t open;       /* Connections whose on_close has not been called yet. */
};
/* The sum of |exhausted| of all listeners of this process, closed ones too. Any thread. */
uint64_t net_exhausted_total(void);
struct net_listener_stats net_listener_stats(const struct net_listener *ln);
/* Set who gets the callbacks; callable again later to hand the connection over. |ops| NULL: no callback comes
 * any more, and the connection still ends properly. */
void net_conn_take(struct net_conn *c, const struct net_conn_ops *ops, void *user);

/* Write all of |iov|: try the socket first, then copy and queue the rest. Above the high-water mark the
 * caller should stop until on_drain (net_over_mark). A queue over 8 times the mark aborts the connection. Not
 * allowed before on_open; does nothing after close or abort. Never calls back inline. */
void net_write(struct net_conn *c, const struct iovec *iov, size_t n);
size_t net_queued(const struct net_conn *c); /* Bytes queued, including lent ones. */
/* Like net_write, for bytes that are sent from the caller's memory. A part with a loan is not copied and does
 * not count against the abort: what the socket does not take now stays lent until the socket took it. |done|
 * is called once per loan, maybe inline, when all its parts are with the kernel or the connection ended;
 * |done| must not touch the connection. A loan is for one call. At most NET_MAX_PARTS parts. */
struct net_loan {
	void (*done)(struct net_loan *l);
	size_t left; /* Bytes still lent; initialise to 0. */
};
struct net_part {
	const void *p;
	size_t n;
	struct net_loan *loan; /* NULL: the part is copied when it cannot be sent at once. */
};
#define NET_MAX_PARTS 64
void net_write_parts(struct net_conn *c, const struct net_part *parts, size_t n);
#define NET_QUEUE_MARK ((size_t)256 * 1024)
bool net_over_mark(const struct net_conn *c);
/* Stop and resume reading: back-pressure to the peer. No on_data is called while paused. A reset is reported
 * while paused, and a FIN too: by on_eof when nothing is unread before it, else by on_hangup. */
void net_pause(struct net_conn *c);
void net_resume(struct net_conn *c);
/* Flush, then end; on_close follows, never inline. Gives up after 5 s without progress. What the peer still
 * sends is read and dropped for a while after on_close, because unread bytes would turn our end into a
 * reset. */
void net_close(struct net_conn *c);
void net_abort(struct net_conn *c);         /* End at once, with a reset. */
bool net_is_open(const struct net_conn *c); /* True after on_open, until a close begins. */
/* Was |c| dialled by a host name that stands for another address now (name.h)? Looks the name up again when it is due. Cheap:
 * ask before each use of a connection that is kept. */
bool net_is_moved(struct net_conn *c);
/* |peer|, the address that net_peer returned for a connection to |addr|, does not serve: use another address
 * of the name in |addr|, if there is one. */
void net_shun(const char *addr, const char *peer);
struct cgn_str net_alpn(const struct net_conn *c);
struct cgn_str net_peer(const struct net_conn *c); /* The peer's address: "127.0.0.1:4711" or "unix". */
/* The name in the peer's verified certificate; empty in clear. */
struct cgn_str net_peer_name(const struct net_conn *c);
/* Return the URI names of that certificate, with a space between them. */
struct cgn_str net_peer_uris(const struct net_conn *c);
struct cgn_loop *net_loop(const struct net_conn *c);
/* Find the local address that a route to |addr| uses, as text without port: the address that an agent should
 * advertise. */
CGN_RC net_route_source(const char *addr, char *out, size_t cap, struct cgn_err *err);
