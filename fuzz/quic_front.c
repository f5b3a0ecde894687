/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz quic_front: datagrams of an unauthenticated sender: their kind, their connection, and whether a token
 * is ours. */
#include <arpa/inet.h>
#include <netinet/in.h>

#include "io/net/quic/quic_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Insert our own answers into an input, so that our tokens, ids and resets come back, whole or broken. */
static size_t feed_back(const struct quic_first *first, const uint8_t *data, size_t n, uint8_t *to,
	size_t cap)
{
	size_t at = 0;
	for (; at < first->n && at < cap; at++)
		to[at] = first->out[at];
	for (size_t i = 0; i < n && at < cap; i++)
		to[at++] = data[i];
	if (n > 0 && at > 0)
		to[data[0] % at] ^= data[n - 1];
	return at;
}

static void verdict_check(const struct quic_front *f, const uint8_t *p, size_t n, enum quic_verdict v,
	const struct quic_first *first)
{
	bool answers = v == QUIC_VERSION || v == QUIC_RETRY || v == QUIC_BAD_TOKEN || v == QUIC_RESET;
	CGN_MUST(answers || first->n == 0);
	CGN_MUST(first->n <= sizeof first->out && first->n <= 3 * n);
	CGN_MUST(v != QUIC_RESET || first->n < n);
	CGN_MUST(v != QUIC_ACCEPT || (f->accepts && !f->full && n >= QUIC_DATAGRAM_MIN));
	CGN_MUST(v != QUIC_ACCEPT || !f->validate || first->retried);
	CGN_MUST(n == 0 || p != NULL);
}

static void front_judge(struct quic_front *f, const uint8_t *p, size_t n, struct quic_first *first)
{
	verdict_check(f, p, n, quic_front_judge(f, p, n, first), first);
}

/* Send a first packet with a token that was just given, as the peer would answer. */
static void come_again(struct quic_front *f, const uint8_t *data, size_t n)
{
	static uint8_t packet[QUIC_DATAGRAM_MIN];
	ngtcp2_cid scid = {.datalen = QUIC_CID_BYTES}, odcid = {.datalen = 8}, found;
	uint8_t token[NGTCP2_CRYPTO_MAX_RETRY_TOKENLEN];
	struct quic_first first;
	for (size_t i = 0; i < 8; i++)
		odcid.data[i] = n > i ? data[i] : 0;
	ngtcp2_ssize len = ngtcp2_crypto_generate_retry_token(token, f->secret, QUIC_SECRET_BYTES,
		NGTCP2_PROTO_VER_V1, f->remote, f->remote_len, &scid, &odcid, f->now);
	CGN_MUST(len > 0);
	bool broken = n > 0 && data[n - 1] != 0;
	if (broken)
		token[data[0] % (size_t)len] ^= data[n - 1];
	size_t at = 0;
	memset(packet, 0, sizeof packet);
	memcpy(packet, "\xc0\0\0\0\1", 5);
	at = 5;
	packet[at++] = QUIC_CID_BYTES;
	at += QUIC_CID_BYTES;
	packet[at++] = 0;
	packet[at++] = 0x40;
	packet[at++] = (uint8_t)len;
	memcpy(packet + at, token, (size_t)len);
	at += (size_t)len;
	packet[at] = (uint8_t)(0x40 | (sizeof packet - at - 2) >> 8);
	packet[at + 1] = (uint8_t)(sizeof packet - at - 2);
	enum quic_verdict v = quic_front_judge(f, packet, sizeof packet, &first);
	verdict_check(f, packet, sizeof packet, v, &first);
	if (!f->accepts || f->full)
		return;
	found = first.odcid;
	if (broken) {
		CGN_MUST(v != QUIC_ACCEPT || !first.retried);
	} else {
		CGN_MUST(v == QUIC_ACCEPT && first.retried && ngtcp2_cid_eq(&found, &odcid) != 0);
		f->now += QUIC_TOKEN_LIFE + CGN_SEC;
		CGN_MUST(quic_front_judge(f, packet, sizeof packet, &first) == QUIC_BAD_TOKEN);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const uint8_t secret[QUIC_SECRET_BYTES] = "of the tests";
	static uint8_t again[4096];
	struct sockaddr_in from = {.sin_family = AF_INET,
		.sin_port = htons(4711),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	uint8_t style = n > 0 ? data[0] : 0;
	struct quic_front f = {.secret = secret,
		.accepts = (style & 1) == 0,
		.full = (style & 2) != 0,
		.validate = (style & 4) != 0,
		.remote = (struct sockaddr *)&from,
		.remote_len = sizeof from,
		.now = CGN_SEC * 1000};
	struct quic_first first;
	if (n < 1)
		return 0;
	front_judge(&f, data + 1, n - 1, &first);
	size_t back = feed_back(&first, data + 1, n - 1, again, sizeof again);
	front_judge(&f, again, back, &first);
	come_again(&f, data + 1, n - 1);
	return 0;
}
