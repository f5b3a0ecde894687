/* SPDX-License-Identifier: Apache-2.0 */
/* quic, inside: the endpoint, its connections and their streams. */
#pragma once
#include "io/net/net/addr.h"
#include "io/net/net/name.h"
#include "io/net/quic/packet_priv.h"

/* ---- endpoint.c ---- */
struct quic_endpoint {
	uint32_t tag;
	bool closing;
	uint32_t n_records; /* Connections, including lingering ones. */
	struct cgn_loop *loop;
	struct quic_endpoint_cfg cfg; /* With defaults filled in; do not use addr and alpn. */
	char alpn[32];
	struct tls_ctx *tls;
	quic_accept_fn *on_accept;
	void *user;
	struct quic_socket *socket;
	struct quic_cids cids;
	struct cgn_link conns;
	struct cgn_link turns; /* Connections with work at the end of the turn. */
	struct cgn_hook hook;
	struct cgn_timer again; /* Some connections have more to write than one turn allows. */
	struct cgn_grave grave;
	uint8_t secret[QUIC_SECRET_BYTES];
	struct quic_stats stats; /* Without the socket's part. */
	struct cgn_err refusal;  /* The last failed handshake. */
	cgn_nsec refused_at;
};
void quic_endpoint_wants_turn(struct quic_endpoint *ep, struct quic_conn *c);
void quic_endpoint_left(struct quic_endpoint *ep); /* A connection's memory was freed. */

/* ---- conn.c ---- */
enum quic_state {
#define STATE(id, exits, why) QUIC_##id,
#include "io/net/quic/states.def"
#undef STATE
};

struct quic_resolving;
struct quic_conn {
	uint32_t tag;
	uint8_t state; /* enum quic_state; written by conn.c's conn_move alone. */
	bool server : 1, taken : 1, counted : 1 /* Counted among the handshakes. */, reported : 1,
		wants_room : 1, has_room : 1, told : 1, resting : 1;
	bool lingers : 1;   /* The connection is gone, but late packets are expected. */
	bool forgotten : 1; /* The peer sent a stateless reset. */
	struct quic_endpoint *ep;
	struct cgn_link all, turn;
	const struct quic_conn_ops *ops; /* NULL: callbacks are off. */
	void *user;
	ngtcp2_conn *ngtcp2; /* NULL while the name is resolved. */
	ngtcp2_crypto_conn_ref ref;
	struct tls_guest *tls;
	struct quic_resolving *resolving;
	struct net_name *name;  /* This side dialled a host name. */
	uint64_t name_version;  /* For net_name_is. */
	struct cgn_timer timer; /* The timer of ngtcp2; later that of the closing period. */
	struct cgn_link cids, streams;
	struct cgn_link due;                    /* Streams with something to report. */
	struct cgn_link ready[QUIC_PRIORITIES]; /* Streams with bytes to send. */
	struct quic_piece *spent;               /* Pieces to release. */
	struct cgn_err *why;                    /* Reason of the end; NULL: a regular one. */
	ngtcp2_ccerr ccerr;
	uint8_t *last; /* The closing packet, to be repeated; may be NULL. */
	size_t last_n;
	uint32_t late; /* Packets that came after the closing packet. */
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
bool quic_conn_turn(struct quic_conn *c); /* Report and write; returns true when more is to be written. */
/* End the connection because the endpoint closes. */
void quic_conn_drop(struct quic_conn *c, const struct cgn_err *why);
bool quic_conn_alive(const struct quic_conn *c);            /* Can streams still send or receive? */
void quic_conn_fail(struct quic_conn *c, int ngtcp2_error); /* Close with an error of ngtcp2. */
void quic_conn_opened(struct quic_conn *c);
void quic_conn_shake_failed(struct quic_conn *c, const struct cgn_err *why);

/* ---- shake.c: ngtcp2's callbacks of a connection, and GnuTLS' handshake ---- */
CGN_RC quic_shake_dial(struct quic_conn *c, const ngtcp2_path *path, struct cgn_err *err);
CGN_RC quic_shake_accept(struct quic_conn *c, const struct quic_first *first, const ngtcp2_path *path,
	struct cgn_err *err);

/* ---- stream.c ---- */
struct quic_piece {
	struct quic_piece *next;
	quic_release_fn *release; /* NULL: the bytes follow the vectors in memory. */
	void *arg;
	size_t n, n_iov;
	struct iovec iov[];
};

struct quic_stream {
	uint32_t tag;
	bool taken : 1, fin_queued : 1, fin_sent : 1, above : 1, blocked : 1;
	bool over : 1; /* ngtcp2 has dropped the stream. */
	/* on_close was called or the stream was cancelled; the memory lives to the end of the turn. */
	bool ended : 1;
	uint8_t level;
	struct quic_conn *c;
	int64_t id;
	const struct quic_stream_ops *ops;
	void *user;
	struct cgn_link all, ready, due;
	/* First unacknowledged piece; last piece; first piece with unsent bytes. */
	struct quic_piece *head, *tail, *next;
	size_t next_at; /* Sent bytes of |next|. */
	uint64_t acked; /* Offset in the stream at which |head| begins. */
	size_t unsent, copied;
	size_t turn_left;    /* Bytes before the next stream of the level gets its turn. */
	struct cgn_err *why; /* The stream failed; reported at the end of the turn. */
	uint64_t code;
	struct cgn_grave grave;
};
/* Callbacks of ngtcp2; |user| is the connection. */
int quic_stream_on_open(ngtcp2_conn *q, int64_t id, void *user);
int quic_stream_on_data(ngtcp2_conn *q, uint32_t flags, int64_t id, uint64_t offset, const uint8_t *p,
	size_t n, void *user, void *stream);
int quic_stream_on_acked(ngtcp2_conn *q, int64_t id, uint64_t offset, uint64_t n, void *user, void *stream);
int quic_stream_on_reset(ngtcp2_conn *q, int64_t id, uint64_t final_size, uint64_t code, void *user,
	void *stream);
int quic_stream_on_close(ngtcp2_conn *q, uint32_t flags, int64_t id, uint64_t code, void *user, void *stream);
int quic_stream_on_credit(ngtcp2_conn *q, int64_t id, uint64_t most, void *user, void *stream);
/* At the end of the turn: report drained and failed streams. */
void quic_streams_report(struct quic_conn *c);
/* The connection ended: call on_close of each stream. */
void quic_streams_end(struct quic_conn *c, const struct cgn_err *why);
void quic_pieces_release(struct quic_conn *c);
/* For the writer: the next stream to send from, or NULL; its bytes; the number of bytes that were sent. */
struct quic_stream *quic_stream_next(struct quic_conn *c);
size_t quic_stream_vectors(const struct quic_stream *s, ngtcp2_vec v[QUIC_VECTORS], bool *fin);
void quic_stream_sent(struct quic_stream *s, size_t n, bool fin);
void quic_stream_wait(struct quic_stream *s);    /* The stream has no flow control credit. */
void quic_stream_stopped(struct quic_stream *s); /* The peer stopped reading the stream. */

/* ---- write.c ---- */
/* Returns true when the connection has more to send but used its share. */
bool quic_write(struct quic_conn *c);
void quic_write_close(struct quic_conn *c);
