/* SPDX-License-Identifier: Apache-2.0 */
/* net: byte streams over TCP and Unix sockets, in clear or TLS. Knows addresses, queues and deadlines, no
 * protocol. A connection belongs to the loop it was made on. */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "io/loop/loop.h"
#include "io/tls/tls.h"

/* Addresses are texts: "host:port", "[v6]:port", "unix:/path". */
CGN_RC net_addr_check(const char *addr, struct cgn_err *err); /* shape only, no resolving */

struct net_conn;
struct net_conn_ops {
	/* connected, TLS done; on a server right after on_accept. May be NULL */
	void (*on_open)(struct net_conn *c, void *user);
	void (*on_data)(struct net_conn *c, void *user, const uint8_t *p, size_t n); /* borrowed */
	void (*on_eof)(struct net_conn *c, void *user); /* the peer ended its side; optional: NULL closes */
	/* While paused, the peer ended its side and unread bytes lie before that end: on_eof follows them
	 * after net_resume. Somebody who writes to this peer may want to know early that it is gone. Once at
	 * most; may be NULL. */
	void (*on_hangup)(struct net_conn *c, void *user);
	/* the write queue went from above to at or below half of its mark; may be NULL */
	void (*on_drain)(struct net_conn *c, void *user);
	/* Last word, exactly once for each connection that net_connect returned OK for or that was accepted;
	 * why->code == CGN_FINE after net_close was flushed. |c| is gone when this returns. */
	void (*on_close)(struct net_conn *c, void *user, const struct cgn_err *why);
};

struct net_dial {
	const char *addr;
	struct tls_ctx *tls;      /* NULL: in clear */
	const char *server_name;  /* TLS: name to verify; NULL: host part of addr */
	cgn_nsec connect_timeout; /* name, TCP and TLS together; 0: 5 s */
};
/* Never calls back before it returned. */
CGN_RC net_connect(struct cgn_loop *l, const struct net_dial *d, const struct net_conn_ops *ops, void *user,
	struct net_conn **out, struct cgn_err *err);

struct net_listener;
struct net_listen_cfg {
	const char *addr;
	/* that |addr| is of, for errors: "kv.listen"; may be NULL. Used during the call only */
	const char *setting;
	struct tls_ctx *tls;
	bool reuse_port; /* several loops listen on one port */
	/* per listener; beyond it accepts are closed at once and counted; 0: 65536 */
	unsigned max_conns;
	cgn_nsec tls_timeout; /* handshake; 0: 5 s */
	mode_t unix_mode;     /* 0: 0660 */
	/* Accept from the socket of this listener, which is another loop's: several loops serve one Unix
	 * socket. |addr| names the same address. To be called before the other loop runs, or on its thread;
	 * each is closed on its own loop, in any order. NULL: none */
	struct net_listener *with;
};
/* |on_accept| comes once TLS is done (a failed handshake is counted only). It must call net_conn_take before
 * it returns, or the connection is closed. CGN_ADDRESS_IN_USE names the address and, where /proc tells, the
 * process that has it. */
CGN_RC net_listen(struct cgn_loop *l, const struct net_listen_cfg *cfg,
	void (*on_accept)(void *user, struct net_conn *c), void *user, struct net_listener **out,
	struct cgn_err *err);
void net_listener_close(struct net_listener **take);       /* existing connections go on */
unsigned net_listener_port(const struct net_listener *ln); /* when bound to port 0 */
struct net_listener_stats {
	uint64_t accepted, refused /* over max_conns */,
		exhausted /* times that descriptors ran out and accepting rested for 100 ms */;
	uint64_t tls_failed; /* handshakes */
	uint32_t open;       /* connections that on_close has not come for */
};
struct net_listener_stats net_listener_stats(const struct net_listener *ln);
/* Also later, to change hands. |ops| NULL: no callback comes any more, the connection still ends as it
 * should. */
void net_conn_take(struct net_conn *c, const struct net_conn_ops *ops, void *user);

/* Write all of it: tries the socket first, copies and queues the rest. Above the mark the caller should stop
 * until on_drain (net_over_mark). A queue over 8x the mark aborts the connection. Not before on_open; no-op
 * after close or abort. Never calls back inline. */
void net_write(struct net_conn *c, const struct iovec *iov, size_t n);
size_t net_queued(const struct net_conn *c); /* lent ones too */
/* The same for bytes that are to be sent from where they lie. A part with a loan is not copied and does not
 * count against the abort: what the socket does not take now stays lent until it did. |done| comes once all
 * parts of the loan are with the kernel, or the connection ended: maybe inline, once per loan; it must not
 * touch the connection. A loan is for one call. At most NET_MAX_PARTS. */
struct net_loan {
	void (*done)(struct net_loan *l);
	size_t left; /* zero at first; bytes that are still lent */
};
struct net_part {
	const void *p;
	size_t n;
	struct net_loan *loan; /* NULL: copied when it cannot go at once */
};
#define NET_MAX_PARTS 64
void net_write_parts(struct net_conn *c, const struct net_part *parts, size_t n);
#define NET_QUEUE_MARK ((size_t)256 * 1024)
bool net_over_mark(const struct net_conn *c);
/* Stop and go on reading: back-pressure to the peer. No on_data comes while paused. A reset is seen while
 * paused, and a FIN too: on_eof when nothing is unread before it, else on_hangup. */
void net_pause(struct net_conn *c);
void net_resume(struct net_conn *c);
/* Flush, then end; on_close follows, never inline. Gives up after 5 s without progress. What the peer still
 * sends is read and dropped for a while after on_close, because unread bytes would turn our end into a
 * reset. */
void net_close(struct net_conn *c);
void net_abort(struct net_conn *c);         /* at once, reset */
bool net_is_open(const struct net_conn *c); /* on_open was called and no close began */
struct cgn_str net_alpn(const struct net_conn *c);
struct cgn_str net_peer(const struct net_conn *c);      /* "127.0.0.1:4711" or "unix" */
struct cgn_str net_peer_name(const struct net_conn *c); /* verified certificate's name; empty in clear */
struct cgn_loop *net_loop(const struct net_conn *c);
/* The local address that a route to |addr| would use, as text without port: what an agent should
 * advertise. */
CGN_RC net_route_source(const char *addr, char *out, size_t cap, struct cgn_err *err);
