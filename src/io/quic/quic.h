/* SPDX-License-Identifier: Apache-2.0 */
/* quic: QUIC v1 (RFC 9000, 9001, 9002) over one UDP socket: streams of bytes between peers that have proven
 * who they are. Knows no application protocol. TLS 1.3 with certificates on both sides, always; 0-RTT is off,
 * since what it carries can be replayed and it would save a fraction of a millisecond on the networks this is
 * made for. An endpoint, its connections and streams belong to the loop they were made on. No callback comes
 * from inside a call.
 *
 * Memory: an endpoint holds at most max_conns connections, and of each connection conn_window bytes that came
 * and nobody took (paused streams, gaps) plus max_streams times two streams. What is sent is borrowed, not
 * copied; copies are bounded by QUIC_COPY_LIMIT a stream. A first packet that comes late or twice, without a
 * token, begins a connection that nobody goes on with: it counts among max_handshakes and ends with
 * handshake_timeout. */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "io/loop/loop.h"
#include "io/tls/tls.h"

struct quic_endpoint;
struct quic_conn;
struct quic_stream;

/* Application error codes travel in 62 bits and mean what the two sides agreed on. */
#define QUIC_CODE_MOST (((uint64_t)1 << 62) - 1)

enum quic_cc {
	QUIC_CC_CUBIC,
	QUIC_CC_BBR,
	QUIC_CC_RENO,
};

/* Zero means the default in brackets. */
struct quic_endpoint_cfg {
	/* "host:port", "[v6]:port"; port 0: any. A numeric host, or none for all of them */
	const char *addr;
	/* must have a certificate and a CA file; kept by reference. A reload counts for handshakes from then
	 * on */
	struct tls_ctx *tls;
	/* the one protocol spoken; a peer without it is refused. At most 31 bytes; kept as a copy */
	const char *alpn;
	/* [1 ms] before the first sample; the RFC's 333 ms would pace a LAN's first flight */
	cgn_nsec initial_rtt;
	cgn_nsec idle_timeout; /* [30 s] a connection that hears nothing for so long ends */
	/* [none] ping after so much silence; less than idle_timeout keeps connections open */
	cgn_nsec keepalive;
	cgn_nsec handshake_timeout; /* [5 s] */
	unsigned max_conns;         /* [1024] both directions together; beyond it new peers are refused */
	/* [256] accepted and not yet verified; beyond it first packets are dropped */
	unsigned max_handshakes;
	/* [32] so many of those from which on a peer must show that it receives at its address (Retry) */
	unsigned retry_above;
	bool retry_always;
	unsigned max_streams; /* [256] that a peer may have open at once on one connection */
	/* [none] unidirectional streams of a peer, whose bytes are dropped: for foreign protocols that insist
	 * on them */
	unsigned max_one_way;
	size_t stream_window; /* [4 MiB] that a peer may send ahead on one stream */
	/* [16 MiB] and on all streams of a connection; not less than stream_window */
	size_t conn_window;
	/* [8952] UDP payload at most, 1200..65000; what the path carries is probed up to here */
	size_t max_datagram;
	size_t socket_buffer; /* [4 MiB] of the kernel, each way; taken as far as the system allows */
	enum quic_cc cc;      /* [CUBIC] */
};

/* A peer that dialled us is verified and open. Call quic_conn_take before returning, or the connection is
 * closed. */
typedef void quic_accept_fn(void *user, struct quic_conn *c);

/* CGN_INVALID: what is wrong with |cfg|. CGN_ADDRESS_IN_USE, CGN_UNAVAILABLE: the socket. |on_accept| NULL:
 * dials only. */
CGN_RC quic_endpoint_new(struct cgn_loop *l, const struct quic_endpoint_cfg *cfg, quic_accept_fn *on_accept,
	void *user, struct quic_endpoint **out, struct cgn_err *err);
unsigned quic_endpoint_port(const struct quic_endpoint *ep);
/* Tell every peer, close every connection (their on_close follow at the end of the turn) and the socket.
 * NULL-safe. */
void quic_endpoint_close(struct quic_endpoint **take);

struct quic_stats {
	/* now: open or opening; accepted ones among them that are not verified yet */
	uint32_t conns, handshakes;
	uint64_t accepted, dialled; /* became open */
	uint64_t handshakes_failed; /* either direction: refused, timed out */
	uint64_t refused;           /* first packets dropped at max_conns or max_handshakes */
	uint64_t retries_sent, tokens_refused, versions_sent, resets_sent, resets_got;
	uint64_t packets_in, packets_out, bytes_in, bytes_out; /* UDP datagrams and their payload */
	uint64_t sends, receives;                              /* system calls: one moves many datagrams */
	uint64_t packets_junk; /* datagrams that belong to nobody or can't be read */
	/* packets with bytes of streams that were sent again, counted when a stream ends */
	uint64_t lost;
	bool gso, gro; /* does the kernel split and join datagrams for us */
};
struct quic_stats quic_endpoint_stats(const struct quic_endpoint *ep);
/* Why the last handshake failed that a peer began or we did, and (|at|) when; code CGN_FINE: none has. */
void quic_endpoint_refusal(const struct quic_endpoint *ep, struct cgn_err *out, cgn_nsec *at);

/* ---- connections ---- */

struct quic_conn_ops {
	/* The peer is verified. On the side that dialled: it has not yet told whether it takes us; if not,
	 * on_close follows. Streams may be opened from here on. May be NULL; does not come for accepted ones,
	 * which are open when accepted. */
	void (*on_open)(struct quic_conn *c, void *user);
	/* The peer opened |s|. Call quic_stream_take before returning, or the stream is cancelled. NULL: all
	 * are. */
	void (*on_stream)(struct quic_conn *c, void *user, struct quic_stream *s);
	/* The peer allows more streams after quic_stream_open had to refuse one. May be NULL. */
	void (*on_room)(struct quic_conn *c, void *user);
	/* Last word, once, for each connection that quic_connect returned OK for or that was taken; on_close
	 * of its streams came before. why->code: CGN_FINE after quic_conn_close or the peer's close with code
	 * 0, CGN_CANCELLED the peer's close with another code (said in why->msg), CGN_TLS one side refused
	 * the other, CGN_DEADLINE silence, CGN_UNAVAILABLE the rest. |c| is gone when this returns. */
	void (*on_close)(struct quic_conn *c, void *user, const struct cgn_err *why);
};

/* |addr| "host:port"; names are resolved on the pool. |server_name|: name that the peer's certificate must
 * have; NULL: the host. CGN_INVALID: |addr|; CGN_OVERLOADED: max_conns. Everything later comes through
 * on_close. */
CGN_RC quic_connect(struct quic_endpoint *ep, const char *addr, const char *server_name,
	const struct quic_conn_ops *ops, void *user, struct quic_conn **out, struct cgn_err *err);
/* Also later, to change hands. |ops| NULL: no callback comes any more. */
void quic_conn_take(struct quic_conn *c, const struct quic_conn_ops *ops, void *user);
bool quic_conn_is_open(const struct quic_conn *c); /* on_open came or accepted, and no close began */
/* verified certificate's name; empty before it is open */
struct cgn_str quic_conn_peer_name(const struct quic_conn *c);
/* smoothed; initial_rtt before the first sample */
cgn_nsec quic_conn_rtt(const struct quic_conn *c);
/* At once: streams end with it, what is unsent is dropped. |sentence| may be NULL, goes to the peer (200
 * bytes at most). on_close follows. No-op after a close began. */
void quic_conn_close(struct quic_conn *c, uint64_t code, const char *sentence);

/* ---- streams: bidirectional ---- */

struct quic_stream_ops {
	/* Borrowed bytes in order; |fin|: the peer's last (n may be 0 then). */
	void (*on_data)(struct quic_stream *s, void *user, const uint8_t *p, size_t n, bool fin);
	/* unsent bytes went from above to at or below half of the mark; may be NULL */
	void (*on_drain)(struct quic_stream *s, void *user);
	/* Last word, once unless the stream was cancelled here. why->code: CGN_FINE when both sides ended
	 * theirs and the peer has it all; CGN_CANCELLED when the peer cancelled with |code|; else the
	 * connection's reason. |s| is gone when this returns. */
	void (*on_close)(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code);
};

/* CGN_OVERLOADED: the peer allows no more streams now (on_room follows); CGN_UNAVAILABLE: the connection is
 * not open. */
CGN_RC quic_stream_open(struct quic_conn *c, const struct quic_stream_ops *ops, void *user,
	struct quic_stream **out, struct cgn_err *err);
void quic_stream_take(struct quic_stream *s, const struct quic_stream_ops *ops, void *user);

/* Queue all of it. With |release|: the bytes are borrowed until the peer has them or the stream ended, then
 * release(arg) comes once, never from inside this call, also after quic_stream_cancel and after on_close.
 * Without: they are copied. |fin|: no send may follow. No-op (but for the release) when the stream or its
 * connection is ending. Copies over QUIC_COPY_LIMIT that wait end the stream. */
typedef void quic_release_fn(void *arg);
void quic_send(struct quic_stream *s, const struct iovec *iov, size_t n, bool fin, quic_release_fn *release,
	void *arg);
#define QUIC_SEND_MARK  ((size_t)1 << 20)
#define QUIC_COPY_LIMIT (8 * QUIC_SEND_MARK)
bool quic_over_mark(const struct quic_stream *s); /* more than the mark is unsent: stop until on_drain */
/* Both directions end now, the peer hears |code|. No callback comes any more but releases; |s| is gone. */
void quic_stream_cancel(struct quic_stream **take, uint64_t code);
/* 0 (most urgent) to 7; [3]. Streams of a more urgent level go first, those of one level take turns. */
#define QUIC_PRIORITIES 8
void quic_priority(struct quic_stream *s, unsigned level);
