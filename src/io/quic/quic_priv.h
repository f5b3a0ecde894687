/* SPDX-License-Identifier: Apache-2.0 */
/* quic, inside: the socket and its batches, connection ids, first packets, connections, streams. */
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>

#include <ngtcp2/ngtcp2.h>
#include <ngtcp2/ngtcp2_crypto.h>

#include "base/core/list.h"
#include "io/net/addr.h"
#include "io/quic/quic.h"

/* Connection ids of ours have one length, since short headers don't tell it. */
#define QUIC_CID_BYTES    12
#define QUIC_SECRET_BYTES 32
#define QUIC_DATAGRAM_MIN 1200 /* RFC 9000, 14: every path must carry it */
#define QUIC_DATAGRAM_MAX 65000
#define QUIC_VECTORS      16 /* pieces of a stream that one packet gathers at most */

/* ---- socket.c: datagrams, many at a time ---- */
struct quic_socket;
struct quic_socket_ops {
	/* One datagram; |path| and |p| are borrowed. */
	void (*on_packet)(void *arg, const ngtcp2_path *path, uint8_t ecn, const uint8_t *p, size_t n);
	void (*on_writable)(void *arg); /* the kernel takes datagrams again */
};
struct quic_socket_counts {
	uint64_t packets_in, packets_out, bytes_in, bytes_out, sends, receives;
	bool gso, gro;
};
CGN_RC quic_socket_open(struct cgn_loop *l, const char *addr, size_t kernel_buffer,
	const struct quic_socket_ops *ops, void *arg, struct quic_socket **out, struct cgn_err *err);
void quic_socket_close(struct quic_socket **take); /* what waits is tried once more */
unsigned quic_socket_port(const struct quic_socket *s);
struct quic_socket_counts quic_socket_counts(const struct quic_socket *s);
/* The address of ours that packets to |remote| leave from, and what the first hop carries (IP packet, 0:
 * unknown). */
CGN_RC quic_socket_route(const struct quic_socket *s, const struct sockaddr_storage *remote, socklen_t len,
	struct sockaddr_storage *local, socklen_t *local_len, unsigned *mtu, struct cgn_err *err);
/* An IPv4 address as a dual-stack IPv6 socket wants it. */
void quic_socket_adapt(const struct quic_socket *s, struct sockaddr_storage *remote, socklen_t *len);
/* Where the next datagram may be written, |most| bytes (at most QUIC_DATAGRAM_MAX); NULL while the kernel is
 * full (on_writable follows). */
uint8_t *quic_socket_room(struct quic_socket *s, size_t most);
/* what lies at room */
void quic_socket_commit(struct quic_socket *s, size_t n, const ngtcp2_path *path, uint8_t ecn);
void quic_socket_flush(struct quic_socket *s);
bool quic_socket_blocked(const struct quic_socket *s);

/* ---- cids.c: which connection a packet is for ---- */
struct quic_cid {
	struct quic_cid *next; /* in the table */
	struct cgn_link of_conn;
	struct quic_conn *conn;
	ngtcp2_cid cid;
};
struct quic_cids {
	struct quic_cid **buckets;
	size_t n_buckets, n;
	uint64_t seed; /* ids of first packets are the peer's choice: no chains by design */
};
bool quic_cids_init(struct quic_cids *t, size_t conns);
void quic_cids_fini(struct quic_cids *t); /* empty by then */
/* false: no memory, or taken */
bool quic_cids_put(struct quic_cids *t, const ngtcp2_cid *cid, struct quic_conn *c);
void quic_cids_drop(struct quic_cids *t, const ngtcp2_cid *cid);
void quic_cids_drop_all(struct quic_cids *t, struct quic_conn *c);
struct quic_conn *quic_cids_find(const struct quic_cids *t, const uint8_t *cid, size_t n);

/* ---- front.c: what to do with a packet that is nobody's. Pure but for randomness: foreign bytes to a
 * verdict and an answer ---- */
enum quic_verdict {
	QUIC_JUNK,
	QUIC_ACCEPT,  /* |odcid|, |retried| are set */
	QUIC_REFUSED, /* full */
	QUIC_VERSION, /* the answers: |out| holds a datagram of |n| bytes */
	QUIC_RETRY,
	QUIC_BAD_TOKEN,
	QUIC_RESET,
};
struct quic_front {
	const uint8_t *secret; /* QUIC_SECRET_BYTES, of tokens and resets */
	bool accepts;          /* else every first packet is junk */
	bool full, validate;   /* refuse; answer first packets without a token by Retry */
	const struct sockaddr *remote;
	socklen_t remote_len;
	cgn_nsec now;
};
struct quic_first {
	ngtcp2_pkt_hd hd;
	ngtcp2_cid odcid; /* the peer's first choice of an id for us */
	bool retried;
	uint8_t out[QUIC_DATAGRAM_MIN];
	size_t n;
};
#define QUIC_TOKEN_LIFE (10 * CGN_SEC)
enum quic_verdict quic_front_judge(const struct quic_front *f, const uint8_t *p, size_t n,
	struct quic_first *out);

/* ---- endpoint.c ---- */
struct quic_endpoint {
	uint32_t tag;
	bool closing;
	uint32_t n_records; /* connections, those that linger included */
	struct cgn_loop *loop;
	struct quic_endpoint_cfg cfg; /* defaults filled in; addr and alpn not to be used */
	char alpn[32];
	struct tls_ctx *tls;
	quic_accept_fn *on_accept;
	void *user;
	struct quic_socket *socket;
	struct quic_cids cids;
	struct cgn_link conns;
	struct cgn_link turns; /* connections that have something to do at the end of the turn */
	struct cgn_hook hook;
	struct cgn_timer again; /* some had more to write than a turn gives them */
	struct cgn_grave grave;
	uint8_t secret[QUIC_SECRET_BYTES];
	struct quic_stats stats; /* but for the socket's part */
	struct cgn_err refusal;  /* the last handshake that failed */
	cgn_nsec refused_at;
};
void quic_endpoint_wants_turn(struct quic_endpoint *ep, struct quic_conn *c);
void quic_endpoint_left(struct quic_endpoint *ep); /* a connection's memory is gone */

/* ---- conn.c ---- */
enum quic_state {
	QUIC_RESOLVING,
	QUIC_SHAKING, /* handshake */
	QUIC_OPEN,
	/* we close; CONNECTION_CLOSE is sent at the end of the turn and again when the peer still talks */
	QUIC_CLOSING,
	QUIC_GONE, /* the peer closed, or is silent: nothing is sent any more */
};

struct quic_resolving;
struct quic_conn {
	uint32_t tag;
	uint8_t state; /* enum quic_state; written by conn.c's move() alone */
	bool server : 1, taken : 1, counted : 1 /* among the handshakes */, reported : 1, wants_room : 1,
		has_room : 1, told : 1, resting : 1;
	bool lingers : 1;   /* gone, but late packets are to be expected */
	bool forgotten : 1; /* the peer sent a stateless reset */
	struct quic_endpoint *ep;
	struct cgn_link all, turn;
	const struct quic_conn_ops *ops; /* NULL: nobody listens */
	void *user;
	ngtcp2_conn *ngtcp2; /* NULL while resolving */
	ngtcp2_crypto_conn_ref ref;
	struct tls_guest *tls;
	struct quic_resolving *resolving;
	struct cgn_timer timer; /* ngtcp2's; then the closing period */
	struct cgn_link cids, streams;
	struct cgn_link due;                    /* streams with something to report */
	struct cgn_link ready[QUIC_PRIORITIES]; /* streams with something to send */
	struct quic_piece *spent;               /* to be released */
	struct cgn_err *why;                    /* of the end; NULL: a proper one */
	ngtcp2_ccerr ccerr;
	uint8_t *last; /* the packet that closes, for a peer that did not hear it; may be NULL */
	size_t last_n;
	uint32_t late; /* packets that came since */
	char sentence[200];
	uint16_t probes[4];
	size_t n_probes;
	struct cgn_grave grave;
	char *server_name;
	char peer[56];
};
void quic_conn_accept(struct quic_endpoint *ep, const struct quic_first *first, const ngtcp2_path *path,
	uint8_t ecn, const uint8_t *p, size_t n);
void quic_conn_packet(struct quic_conn *c, const ngtcp2_path *path, uint8_t ecn, const uint8_t *p, size_t n);
bool quic_conn_turn(struct quic_conn *c); /* reports and writes; true: has more to write */
void quic_conn_drop(struct quic_conn *c, const struct cgn_err *why); /* the endpoint closes */
bool quic_conn_alive(const struct quic_conn *c);                     /* streams can still do something */
void quic_conn_fail(struct quic_conn *c, int ngtcp2_error);          /* close with what ngtcp2 said */
void quic_conn_opened(struct quic_conn *c);
void quic_conn_shake_failed(struct quic_conn *c, const struct cgn_err *why);

/* ---- shake.c: ngtcp2's view of a connection and GnuTLS's handshake ---- */
CGN_RC quic_shake_dial(struct quic_conn *c, const ngtcp2_path *path, struct cgn_err *err);
CGN_RC quic_shake_accept(struct quic_conn *c, const struct quic_first *first, const ngtcp2_path *path,
	struct cgn_err *err);

/* ---- stream.c ---- */
struct quic_piece {
	struct quic_piece *next;
	quic_release_fn *release; /* NULL: the bytes lie behind the vectors */
	void *arg;
	size_t n, n_iov;
	struct iovec iov[];
};

struct quic_stream {
	uint32_t tag;
	bool taken : 1, fin_queued : 1, fin_sent : 1, above : 1, blocked : 1;
	bool over : 1;  /* ngtcp2 has forgotten it */
	bool ended : 1; /* on_close came or it was cancelled; the memory lives to the end of the turn */
	uint8_t level;
	struct quic_conn *c;
	int64_t id;
	const struct quic_stream_ops *ops;
	void *user;
	struct cgn_link all, ready, due;
	struct quic_piece *head, *tail, *next; /* first unacked; last; first with unsent bytes */
	size_t next_at;                        /* bytes of |next| that are sent */
	uint64_t acked;                        /* offset in the stream where |head| begins */
	size_t unsent, copied;
	size_t turn_left;                    /* bytes before the next stream of the level has its turn */
	struct cgn_err *why; /* it is over, but that is not reported: held bytes wait, or the turn is not */
	uint64_t code;
	struct cgn_grave grave;
};
/* ngtcp2's callbacks; |user| is the connection. */
int quic_stream_on_open(ngtcp2_conn *q, int64_t id, void *user);
int quic_stream_on_data(ngtcp2_conn *q, uint32_t flags, int64_t id, uint64_t offset, const uint8_t *p,
	size_t n, void *user, void *stream);
int quic_stream_on_acked(ngtcp2_conn *q, int64_t id, uint64_t offset, uint64_t n, void *user, void *stream);
int quic_stream_on_reset(ngtcp2_conn *q, int64_t id, uint64_t final_size, uint64_t code, void *user,
	void *stream);
int quic_stream_on_close(ngtcp2_conn *q, uint32_t flags, int64_t id, uint64_t code, void *user, void *stream);
int quic_stream_on_credit(ngtcp2_conn *q, int64_t id, uint64_t most, void *user, void *stream);
/* The end of the turn: what was held, who may go on. */
void quic_streams_report(struct quic_conn *c);
/* the connection is over: on_close for each */
void quic_streams_end(struct quic_conn *c, const struct cgn_err *why);
void quic_pieces_release(struct quic_conn *c);
/* What the writer asks: the next stream to send from, or NULL; its bytes; how many of them went. */
struct quic_stream *quic_stream_next(struct quic_conn *c);
size_t quic_stream_vectors(const struct quic_stream *s, ngtcp2_vec v[QUIC_VECTORS], bool *fin);
void quic_stream_sent(struct quic_stream *s, size_t n, bool fin);
void quic_stream_wait(struct quic_stream *s);    /* no credit */
void quic_stream_stopped(struct quic_stream *s); /* the peer does not want it */

/* ---- write.c ---- */
bool quic_write(struct quic_conn *c); /* true: has more, but had its share */
void quic_write_close(struct quic_conn *c);
