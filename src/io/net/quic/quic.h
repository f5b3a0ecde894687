/* SPDX-License-Identifier: Apache-2.0 */
/* quic: QUIC v1 (RFC 9000, 9001, 9002) over one UDP socket: streams of bytes between authenticated peers.
 * Handles no application protocol. TLS 1.3 with certificates on both sides is mandatory; 0-RTT is off,
 * because its data can be replayed and it would save only a fraction of a millisecond on a LAN. An endpoint,
 * its connections and its streams belong to the loop they were made on. Callbacks are never made from inside
 * a call.
 *
 * Memory: an endpoint holds at most max_conns connections. A connection holds at most conn_window received
 * bytes (gaps) plus max_streams times two streams. Sent data is borrowed, not copied; copies are bounded by
 * QUIC_COPY_LIMIT per stream. A first packet without a token that comes late or twice begins a connection
 * that the peer never completes: it counts among max_handshakes and ends after handshake_timeout. */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "io/net/tls/tls.h"
#include "io/os/loop/loop.h"

struct quic_endpoint;
struct quic_conn;
struct quic_stream;

/* Application error codes have 62 bits; the application protocol defines them. */
#define QUIC_CODE_MOST (((uint64_t)1 << 62) - 1)

enum quic_cc {
	QUIC_CC_CUBIC,
	QUIC_CC_BBR,
	QUIC_CC_RENO,
};

/* 0 selects the default in brackets. */
struct quic_endpoint_cfg {
	/* "host:port" or "[v6]:port" with a numeric host; without a host: all addresses. Port 0: any port. */
	const char *addr;
	/* Must have a certificate and a CA file; kept by reference. A reload applies to later handshakes. */
	struct tls_ctx *tls;
	/* The only accepted application protocol; a peer without it is refused. At most 31 bytes; copied. */
	const char *alpn;
	/* [1 ms] Assumed round trip before the first sample; the RFC's 333 ms would pace the first flight on
	 * a LAN. */
	cgn_nsec initial_rtt;
	cgn_nsec idle_timeout; /* [30 s] A connection that receives nothing for so long ends. */
	/* [none] Send a ping after this much silence; a value below idle_timeout keeps connections open. */
	cgn_nsec keepalive;
	cgn_nsec handshake_timeout; /* [5 s] */
	/* [1024] Connections in both directions together; beyond it new peers are refused. */
	unsigned max_conns;
	/* [256] Accepted connections that are not verified yet; beyond it first packets are dropped. */
	unsigned max_handshakes;
	/* [32] From this number of unverified connections on, a peer must prove that it receives at its
	 * address (Retry). */
	unsigned retry_above;
	bool retry_always;
	unsigned max_streams; /* [256] Streams that a peer may have open at once on one connection. */
	/* [none] Unidirectional streams of a peer, whose bytes are dropped: for foreign protocols that
	 * require them. */
	unsigned max_one_way;
	size_t stream_window; /* [4 MiB] Bytes that a peer may send ahead on one stream. */
	/* [16 MiB] Bytes that a peer may send ahead on all streams of a connection; at least
	 * stream_window. */
	size_t conn_window;
	/* [8952] Largest UDP payload, 1200..65000; path MTU discovery probes up to it. */
	size_t max_datagram;
	size_t socket_buffer; /* [4 MiB] Kernel buffer in each direction, as far as the system allows. */
	enum quic_cc cc;      /* [CUBIC] */
};

/* A peer dialled, is verified and open. Call quic_conn_take before returning, or the connection is closed. */
typedef void quic_accept_fn(void *user, struct quic_conn *c);

/* Open an endpoint. |on_accept| NULL: it only dials. CGN_INVALID: |cfg| is wrong (the message says how).
 * CGN_ADDRESS_IN_USE, CGN_UNAVAILABLE: the socket. */
CGN_RC quic_endpoint_new(struct cgn_loop *l, const struct quic_endpoint_cfg *cfg, quic_accept_fn *on_accept,
	void *user, struct quic_endpoint **out, struct cgn_err *err);
unsigned quic_endpoint_port(const struct quic_endpoint *ep);
/* Close every connection, which notifies the peers (on_close follows at the end of the turn), and the socket.
 * NULL-safe. */
void quic_endpoint_close(struct quic_endpoint **take);

struct quic_stats {
	/* Now: open or opening; handshakes: the accepted ones among them that are not verified yet. */
	uint32_t conns, handshakes;
	uint64_t accepted, dialled; /* Connections that became open. */
	uint64_t handshakes_failed; /* Refused or timed out, in either direction. */
	uint64_t refused;           /* First packets dropped because of max_conns or max_handshakes. */
	uint64_t retries_sent, tokens_refused, versions_sent, resets_sent, resets_got;
	uint64_t packets_in, packets_out, bytes_in, bytes_out; /* UDP datagrams and their payload. */
	/* System calls; one call moves many datagrams. */
	uint64_t sends, receives;
	uint64_t packets_junk; /* Datagrams that belong to no connection or cannot be read. */
	/* Packets with stream bytes that were sent again; counted when a stream ends. */
	uint64_t lost;
	bool gso, gro; /* Does the kernel split and join datagrams? */
};
struct quic_stats quic_endpoint_stats(const struct quic_endpoint *ep);
/* Get the reason of the last failed handshake, in either direction, and its time in |at|; code CGN_FINE: none
 * failed. */
void quic_endpoint_refusal(const struct quic_endpoint *ep, struct cgn_err *out, cgn_nsec *at);

/* ---- connections ---- */

struct quic_conn_ops {
	/* The peer is verified and streams may be opened. On the dialling side the peer may still refuse us;
	 * then on_close follows. May be NULL. Not called for accepted connections, which are open when
	 * accepted. */
	void (*on_open)(struct quic_conn *c, void *user);
	/* The peer opened |s|. Call quic_stream_take before returning, or the stream is cancelled. NULL:
	 * every stream is cancelled. */
	void (*on_stream)(struct quic_conn *c, void *user, struct quic_stream *s);
	/* The peer allows more streams, after quic_stream_open failed with CGN_OVERLOADED. May be NULL. */
	void (*on_room)(struct quic_conn *c, void *user);
	/* The last callback, called once for each connection that was taken or for which quic_connect
	 * succeeded, after on_close of its streams. why->code: CGN_FINE after quic_conn_close or the peer's
	 * close with code 0; CGN_CANCELLED: the peer closed with another code (why->msg has it); CGN_TLS: one
	 * side refused the other; CGN_DEADLINE: silence; CGN_UNAVAILABLE: anything else. |c| is freed when
	 * this returns. */
	void (*on_close)(struct quic_conn *c, void *user, const struct cgn_err *why);
};

/* Dial |addr| ("host:port"; names are resolved on the pool). |server_name|: the name that the peer's
 * certificate must have; NULL: the host. CGN_INVALID: |addr|; CGN_OVERLOADED: max_conns. Later failures are
 * reported by on_close. */
CGN_RC quic_connect(struct quic_endpoint *ep, const char *addr, const char *server_name,
	const struct quic_conn_ops *ops, void *user, struct quic_conn **out, struct cgn_err *err);
/* Set who gets the callbacks; callable again later to hand the connection over. |ops| NULL: no callback comes
 * any more. */
void quic_conn_take(struct quic_conn *c, const struct quic_conn_ops *ops, void *user);
bool quic_conn_is_open(const struct quic_conn *c); /* True from on_open or acceptance until a close begins. */
struct cgn_str quic_conn_peer(const struct quic_conn *c); /* The peer's address. */
/* Was |c| dialled by a host name that stands for another address now? As net_is_moved. */
bool quic_conn_is_moved(struct quic_conn *c);
struct quic_endpoint *quic_conn_endpoint(const struct quic_conn *c);
/* Return the name in the peer's verified certificate; empty before the connection is open. */
struct cgn_str quic_conn_peer_name(const struct quic_conn *c);
/* Return the URI names of that certificate, with a space between them. */
struct cgn_str quic_conn_peer_uris(const struct quic_conn *c);
/* Return the smoothed round trip time; initial_rtt before the first sample. */
cgn_nsec quic_conn_rtt(const struct quic_conn *c);
/* Close at once: streams end and unsent bytes are dropped. |sentence| is sent to the peer (at most 200
 * bytes); may be NULL. on_close follows. Does nothing after a close began. */
void quic_conn_close(struct quic_conn *c, uint64_t code, const char *sentence);

/* ---- streams: bidirectional ---- */

struct quic_stream_ops {
	/* Bytes in order, borrowed; |fin|: the last ones (n may be 0 then). */
	void (*on_data)(struct quic_stream *s, void *user, const uint8_t *p, size_t n, bool fin);
	/* Unsent bytes fell to half of the high-water mark or below; may be NULL. */
	void (*on_drain)(struct quic_stream *s, void *user);
	/* The last callback, called once unless the stream was cancelled on this side. why->code: CGN_FINE
	 * when both sides ended and the peer has everything; CGN_CANCELLED when the peer cancelled with
	 * |code|; otherwise the connection's reason. |s| is freed when this returns. */
	void (*on_close)(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code);
};

/* CGN_OVERLOADED: the peer allows no more streams now (on_room follows); CGN_UNAVAILABLE: the connection is
 * not open. */
CGN_RC quic_stream_open(struct quic_conn *c, const struct quic_stream_ops *ops, void *user,
	struct quic_stream **out, struct cgn_err *err);
void quic_stream_take(struct quic_stream *s, const struct quic_stream_ops *ops, void *user);

/* Queue all of |iov|. With |release| the bytes are borrowed until the peer has them or the stream ended; then
 * release(arg) is called once, never from inside this call, also after quic_stream_cancel and after on_close.
 * Without |release| the bytes are copied. |fin|: no send may follow. Does nothing (except the release) when
 * the stream or its connection is ending. More than QUIC_COPY_LIMIT waiting copied bytes end the stream. */
typedef void quic_release_fn(void *arg);
void quic_send(struct quic_stream *s, const struct iovec *iov, size_t n, bool fin, quic_release_fn *release,
	void *arg);
#define QUIC_SEND_MARK  ((size_t)1 << 20)
#define QUIC_COPY_LIMIT (8 * QUIC_SEND_MARK)
/* More unsent bytes than the high-water mark: stop until on_drain. */
bool quic_over_mark(const struct quic_stream *s);
/* End both directions now; the peer receives |code|. No callback but releases comes any more; |s| is
 * freed. */
void quic_stream_cancel(struct quic_stream **take, uint64_t code);
/* 0 (most urgent) to 7; [3]. Streams of a more urgent level go first; streams of one level take turns. */
#define QUIC_PRIORITIES 8
void quic_priority(struct quic_stream *s, unsigned level);
