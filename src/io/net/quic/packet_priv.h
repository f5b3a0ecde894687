/* SPDX-License-Identifier: Apache-2.0 */
/* quic packets: the socket and its batches, the table of connection ids, and first packets. */
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>

#include <ngtcp2/ngtcp2.h>
#include <ngtcp2/ngtcp2_crypto.h>

#include "base/core/list.h"
#include "io/net/quic/quic.h"

struct quic_conn;

/* Our connection ids have one length, because short headers do not state it. */
#define QUIC_CID_BYTES    12
#define QUIC_SECRET_BYTES 32
#define QUIC_DATAGRAM_MIN 1200 /* RFC 9000, 14: every path must carry it. */
#define QUIC_DATAGRAM_MAX 65000
#define QUIC_VECTORS      16 /* Most pieces of a stream that one packet gathers. */

/* ---- socket.c: datagrams, many at a time ---- */
struct quic_socket;
struct quic_socket_ops {
	/* A datagram; |path| and |p| are borrowed. */
	void (*on_packet)(void *arg, const ngtcp2_path *path, uint8_t ecn, const uint8_t *p, size_t n);
	void (*on_writable)(void *arg); /* The kernel takes datagrams again. */
};
struct quic_socket_counts {
	uint64_t packets_in, packets_out, bytes_in, bytes_out, sends, receives;
	bool gso, gro;
};
CGN_RC quic_socket_open(struct cgn_loop *l, const char *addr, size_t kernel_buffer,
	const struct quic_socket_ops *ops, void *arg, struct quic_socket **out, struct cgn_err *err);
void quic_socket_close(struct quic_socket **take); /* Tries once more to send what waits. */
unsigned quic_socket_port(const struct quic_socket *s);
struct quic_socket_counts quic_socket_counts(const struct quic_socket *s);
/* Get our address on the route to |remote|, and the size of an IP packet on the first hop (0: unknown). */
CGN_RC quic_socket_route(const struct quic_socket *s, const struct sockaddr_storage *remote, socklen_t len,
	struct sockaddr_storage *local, socklen_t *local_len, unsigned *mtu, struct cgn_err *err);
/* Map an IPv4 address to the form that a dual-stack IPv6 socket needs. */
void quic_socket_adapt(const struct quic_socket *s, struct sockaddr_storage *remote, socklen_t *len);
/* Return room for the next datagram of up to |most| bytes (at most QUIC_DATAGRAM_MAX); NULL while the
 * kernel's buffer is full (on_writable follows). */
uint8_t *quic_socket_room(struct quic_socket *s, size_t most);
/* Send the datagram that was written into the room. */
void quic_socket_commit(struct quic_socket *s, size_t n, const ngtcp2_path *path, uint8_t ecn);
void quic_socket_flush(struct quic_socket *s);
bool quic_socket_blocked(const struct quic_socket *s);

/* ---- cids.c: the connection of a packet ---- */
struct quic_cid {
	struct quic_cid *next; /* Next entry of the bucket. */
	struct cgn_link of_conn;
	struct quic_conn *conn;
	ngtcp2_cid cid;
};
struct quic_cids {
	struct quic_cid **buckets;
	size_t n_buckets, n;
	/* Peers choose the ids of first packets, so the hash is seeded against crafted collisions. */
	uint64_t seed;
};
void quic_cids_init(struct quic_cids *t, size_t conns);
void quic_cids_fini(struct quic_cids *t); /* Every entry must be removed before. */
/* Returns false when the id is taken. */
bool quic_cids_put(struct quic_cids *t, const ngtcp2_cid *cid, struct quic_conn *c);
void quic_cids_drop(struct quic_cids *t, const ngtcp2_cid *cid);
void quic_cids_drop_all(struct quic_cids *t, struct quic_conn *c);
struct quic_conn *quic_cids_find(const struct quic_cids *t, const uint8_t *cid, size_t n);

/* ---- front.c: what to do with a packet of no connection. Pure except for randomness: bytes to a verdict and
 * an answer ---- */
enum quic_verdict {
	QUIC_JUNK,
	QUIC_ACCEPT,  /* |odcid| and |retried| are set. */
	QUIC_REFUSED, /* No room. */
	QUIC_VERSION, /* The following verdicts are answered: |out| holds a datagram of |n| bytes. */
	QUIC_RETRY,
	QUIC_BAD_TOKEN,
	QUIC_RESET,
};
struct quic_front {
	const uint8_t *secret; /* QUIC_SECRET_BYTES bytes; the key of tokens and resets. */
	bool accepts;          /* False: every first packet is junk. */
	bool full, validate;   /* full: refuse; validate: answer first packets without a token by Retry. */
	const struct sockaddr *remote;
	socklen_t remote_len;
	cgn_nsec now;
};
struct quic_first {
	ngtcp2_pkt_hd hd;
	ngtcp2_cid odcid; /* Our id that the peer chose first. */
	bool retried;
	uint8_t out[QUIC_DATAGRAM_MIN];
	size_t n;
};
#define QUIC_TOKEN_LIFE (10 * CGN_SEC)
enum quic_verdict quic_front_judge(const struct quic_front *f, const uint8_t *p, size_t n,
	struct quic_first *out);
