/* SPDX-License-Identifier: Apache-2.0 */
/* write: fill a connection's packets from its streams, in turn, into the socket's batches. */
#include <stdlib.h>
#include <string.h>

#include "quic_priv.h"

#define SHARE_BYTES ((size_t)256 * 1024) /* Bytes of one connection in one turn. */
/* Only BBR is paced, because it must be. The loop's timers tick in milliseconds, and a LAN's round trip takes
 * a tenth of one: paced, the first 64 KiB of a connection took 4 ms instead of 2. CUBIC and Reno are limited
 * by acknowledgements and shares, as the kernel's are without fq. */

enum outcome {
	WROTE,   /* A packet is complete. */
	PARTLY,  /* The packet has room for another stream. */
	NOTHING, /* Nothing more to send, or no permission to send. */
	FAILED,
};

/* Interpret ngtcp2's result for a stream's data: |rc| is a packet's length or an error. */
static enum outcome write_outcome(struct quic_conn *c, struct quic_stream *s, ngtcp2_ssize rc,
	ngtcp2_ssize took, size_t offered, bool fin)
{
	if (s != NULL && took >= 0)
		quic_stream_sent(s, (size_t)took, fin && (size_t)took == offered);
	if (rc > 0)
		return WROTE;
	if (rc == 0)
		return NOTHING;
	if (rc == NGTCP2_ERR_WRITE_MORE)
		return PARTLY;
	if (s != NULL && rc == NGTCP2_ERR_STREAM_DATA_BLOCKED) {
		quic_stream_wait(s);
		return PARTLY;
	}
	if (s != NULL && (rc == NGTCP2_ERR_STREAM_SHUT_WR || rc == NGTCP2_ERR_STREAM_NOT_FOUND)) {
		quic_stream_stopped(s);
		return PARTLY;
	}
	quic_conn_fail(c, (int)rc);
	return FAILED;
}

/* Write at most one packet at |at|; its length goes to |*n|. */
static enum outcome packet_write(struct quic_conn *c, uint8_t *at, size_t most, ngtcp2_path_storage *ps,
	ngtcp2_pkt_info *pi, cgn_nsec now, size_t *n)
{
	enum outcome o;
	do {
		ngtcp2_vec v[QUIC_VECTORS];
		ngtcp2_ssize took = -1;
		bool fin = false;
		struct quic_stream *s = quic_stream_next(c);
		size_t n_v = s != NULL ? quic_stream_vectors(s, v, &fin) : 0, offered = 0;
		for (size_t i = 0; i < n_v; i++)
			offered += v[i].len;
		uint32_t flags = s != NULL
			? NGTCP2_WRITE_STREAM_FLAG_MORE | (fin ? NGTCP2_WRITE_STREAM_FLAG_FIN : 0U)
			: 0U;
		ngtcp2_ssize rc = ngtcp2_conn_writev_stream(c->ngtcp2, &ps->path, pi, at, most, &took, flags,
			s != NULL ? s->id : -1, v, n_v, now);
		o = write_outcome(c, s, rc, took, offered, fin);
		*n = rc > 0 ? (size_t)rc : 0;
	} while (o == PARTLY);
	return o;
}

bool quic_write(struct quic_conn *c)
{
	struct quic_socket *socket = c->ep->socket;
	ngtcp2_path_storage ps;
	ngtcp2_pkt_info pi = {0};
	cgn_nsec now = cgn_clock_now();
	size_t sum = 0;
	enum outcome o = WROTE;
	ngtcp2_path_storage_zero(&ps);
	while (o == WROTE && sum < SHARE_BYTES) {
		size_t most = ngtcp2_conn_get_max_tx_udp_payload_size(c->ngtcp2), n = 0;
		uint8_t *at = quic_socket_room(socket, most);
		if (at == NULL)
			break;
		o = packet_write(c, at, most, &ps, &pi, now, &n);
		if (o == WROTE)
			quic_socket_commit(socket, n, &ps.path, pi.ecn);
		sum += n;
	}
	if (o != FAILED && c->ep->cfg.cc == QUIC_CC_BBR)
		ngtcp2_conn_update_pkt_tx_time(c->ngtcp2, now);
	return o == WROTE && quic_conn_alive(c);
}

void quic_write_close(struct quic_conn *c)
{
	struct quic_socket *socket = c->ep->socket;
	ngtcp2_path_storage ps;
	ngtcp2_pkt_info pi = {0};
	ngtcp2_path_storage_zero(&ps);
	uint8_t *at = quic_socket_room(socket, QUIC_DATAGRAM_MIN);
	if (at == NULL)
		return;
	ngtcp2_ssize n = ngtcp2_conn_write_connection_close(c->ngtcp2, &ps.path, &pi, at, QUIC_DATAGRAM_MIN,
		&c->ccerr, cgn_clock_now());
	if (n <= 0)
		return;
	c->last_n = (size_t)n;
	c->last = memcpy(CGN_NEW_ARRAY(uint8_t, c->last_n), at, c->last_n);
	quic_socket_commit(socket, c->last_n, &ps.path, pi.ecn);
}
