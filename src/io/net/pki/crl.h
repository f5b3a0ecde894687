/* SPDX-License-Identifier: Apache-2.0 */
/* crl: make and read lists of revoked certificates (CRLs, RFC 5280, 5). No files; time is an argument. */
#pragma once
#include "io/net/pki/pki.h"

/* The facts of one list. */
struct pki_crl_info {
	char issuer[256];
	uint64_t number; /* Grows with each list of this authority. */
	struct pki_validity when;
	size_t n; /* Revoked certificates. */
};
/* Call |list| for each list of a PEM text, then |entry| (may be NULL) for each of its certificates: |serial| in hex,
 * |when| it was revoked in Unix seconds. Ends early, with its failure, when a call fails. */
struct pki_crl_reader {
	CGN_RC (*list)(void *user, const struct pki_crl_info *info, struct cgn_err *err);
	CGN_RC (*entry)(void *user, const char *serial, int64_t when, struct cgn_err *err);
	void *user;
};
CGN_RC pki_crl_read(struct cgn_str pem, const struct pki_crl_reader *reader, struct cgn_err *err);

/* Did an authority of |bundle| sign the first list of |list|? Dates do not count. False also for texts that cannot be read. */
bool pki_crl_signed_by(struct cgn_str bundle, struct cgn_str list);

#define PKI_MAX_SERIAL 20 /* Bytes (RFC 5280, 4.1.2.2). */
/* Make the next list of |ca|: the certificates of its list in |old| (PEM; empty: none) and those of |serials| (hex,
 * NULL-terminated; those that are there already count once). Lists of other authorities in |old| stay as they are,
 * behind it. CGN_INVALID quotes a serial number that is none. *added: certificates that were not in the list. */
CGN_RC pki_crl_make(const struct pki_pair *ca, struct cgn_str old, const char *const *serials,
	struct pki_validity when, struct cgn_buf *out, size_t *added, struct cgn_err *err);
/* Read the status of gnutls_x509_crl_verify: did an authority sign the list? GnuTLS judges its dates too, always. */
bool pki_crl_is_signed(unsigned status);
/* Did |ca|, a PEM text of one authority or more, sign the certificate in |pem|? Its dates do not count. */
CGN_RC pki_signed_by(struct cgn_str ca, struct cgn_str pem, bool *out, struct cgn_err *err);
