/* SPDX-License-Identifier: Apache-2.0 */
/* front: packets that belong to no connection. Any host can send them, so this file keeps no state, never
 * answers with more bytes than it received (RFC 9000, 8.1), and drops unclear packets. */
#include <string.h>

#include "quic_priv.h"

/* An answer to a short packet must be shorter than the packet, or two endpoints could reset each other's
 * resets for ever. */
#define RESET_LEAST 22
#define RESET_MOST  42

static enum quic_verdict version_answer(const ngtcp2_version_cid *vc, size_t n, struct quic_first *out)
{
	static const uint32_t versions[] = {NGTCP2_PROTO_VER_V1};
	uint8_t any = 0;
	if (n < QUIC_DATAGRAM_MIN)
		return QUIC_JUNK;
	cgn_random(&any, 1);
	ngtcp2_ssize len = ngtcp2_pkt_write_version_negotiation(out->out, sizeof out->out, any, vc->scid,
		vc->scidlen, vc->dcid, vc->dcidlen, versions, CGN_COUNT(versions));
	out->n = len > 0 ? (size_t)len : 0;
	return len > 0 ? QUIC_VERSION : QUIC_JUNK;
}

static enum quic_verdict reset_answer(const struct quic_front *f, const ngtcp2_version_cid *vc, size_t n,
	struct quic_first *out)
{
	uint8_t token_check[NGTCP2_STATELESS_RESET_TOKENLEN], noise[RESET_MOST];
	ngtcp2_cid cid;
	if (n <= RESET_LEAST || vc->dcidlen != QUIC_CID_BYTES)
		return QUIC_JUNK;
	ngtcp2_cid_init(&cid, vc->dcid, vc->dcidlen);
	if (ngtcp2_crypto_generate_stateless_reset_token(token_check, f->secret, QUIC_SECRET_BYTES, &cid) !=
		0)
		return QUIC_JUNK;
	size_t len = n - 1 < RESET_MOST ? n - 1 : RESET_MOST;
	cgn_random(noise, len);
	ngtcp2_ssize wrote =
		ngtcp2_pkt_write_stateless_reset(out->out, len, token_check, noise, len - sizeof token_check);
	out->n = wrote > 0 ? (size_t)wrote : 0;
	return wrote > 0 ? QUIC_RESET : QUIC_JUNK;
}

static enum quic_verdict retry_answer(const struct quic_front *f, struct quic_first *out)
{
	uint8_t token_check[NGTCP2_CRYPTO_MAX_RETRY_TOKENLEN];
	ngtcp2_cid scid = {.datalen = QUIC_CID_BYTES};
	cgn_random(scid.data, scid.datalen);
	ngtcp2_ssize n = ngtcp2_crypto_generate_retry_token(token_check, f->secret, QUIC_SECRET_BYTES,
		out->hd.version, f->remote, f->remote_len, &scid, &out->hd.dcid, f->now);
	if (n <= 0)
		return QUIC_JUNK;
	ngtcp2_ssize len = ngtcp2_crypto_write_retry(out->out, sizeof out->out, out->hd.version,
		&out->hd.scid, &scid, &out->hd.dcid, token_check, (size_t)n);
	out->n = len > 0 ? (size_t)len : 0;
	return len > 0 ? QUIC_RETRY : QUIC_JUNK;
}

/* Tell the peer, so that it does not keep trying (RFC 9000, 8.1.2). */
static enum quic_verdict bad_token(struct quic_first *out)
{
	ngtcp2_ssize len = ngtcp2_crypto_write_connection_close(out->out, sizeof out->out, out->hd.version,
		&out->hd.scid, &out->hd.dcid, NGTCP2_INVALID_TOKEN, NULL, 0);
	out->n = len > 0 ? (size_t)len : 0;
	return QUIC_BAD_TOKEN;
}

static enum quic_verdict token_check(const struct quic_front *f, struct quic_first *out)
{
	const ngtcp2_pkt_hd *hd = &out->hd;
	if (hd->token[0] != NGTCP2_CRYPTO_TOKEN_MAGIC_RETRY) /* Not one of our tokens: treat it as absent. */
		return f->validate ? retry_answer(f, out) : QUIC_ACCEPT;
	if (ngtcp2_crypto_verify_retry_token(&out->odcid, hd->token, hd->tokenlen, f->secret,
		    QUIC_SECRET_BYTES, hd->version, f->remote, f->remote_len, &hd->dcid, QUIC_TOKEN_LIFE,
		    f->now) != 0)
		return bad_token(out);
	out->retried = true;
	return QUIC_ACCEPT;
}

static enum quic_verdict first_packet(const struct quic_front *f, const uint8_t *p, size_t n,
	struct quic_first *out)
{
	if (!f->accepts || ngtcp2_accept(&out->hd, p, n) != 0)
		return QUIC_JUNK;
	if (f->full)
		return QUIC_REFUSED;
	out->odcid = out->hd.dcid;
	if (out->hd.tokenlen > 0)
		return token_check(f, out);
	return f->validate ? retry_answer(f, out) : QUIC_ACCEPT;
}

enum quic_verdict quic_front_judge(const struct quic_front *f, const uint8_t *p, size_t n,
	struct quic_first *out)
{
	ngtcp2_version_cid vc;
	out->n = 0;
	out->retried = false;
	if (n == 0)
		return QUIC_JUNK; /* ngtcp2 asserts that the packet is not empty. */
	int rc = ngtcp2_pkt_decode_version_cid(&vc, p, n, QUIC_CID_BYTES);
	if (rc == NGTCP2_ERR_VERSION_NEGOTIATION)
		return f->accepts ? version_answer(&vc, n, out) : QUIC_JUNK;
	if (rc != 0)
		return QUIC_JUNK;
	return vc.version == 0 ? reset_answer(f, &vc, n, out) : first_packet(f, p, n, out);
}
