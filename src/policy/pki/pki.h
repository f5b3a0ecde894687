/* SPDX-License-Identifier: Apache-2.0 */
/* pki: the cluster's own certificate authority and the certificates of its nodes. EC P-256, SHA-256, PEM in
 * and out, no files. Time is an argument; keys and serial numbers come from GnuTLS's generator. */
#pragma once
#include <stdbool.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

/* A certificate and its private key as PEM texts, NUL-terminated (the NUL is not counted). Ends with
 * pki_pair_fini, which wipes the key. */
struct pki_pair {
	struct cgn_buf cert, key;
};
void pki_pair_fini(struct pki_pair *p);

struct pki_validity {
	int64_t from, to; /* Unix seconds */
};

/* A self-signed authority named |common_name|, which signs leaves only (path length 0). */
CGN_RC pki_make_ca(const char *common_name, struct pki_validity when, struct pki_pair *out,
	struct cgn_err *err);

/* A leaf signed by |ca|, for servers and clients. |names|: DNS names and IP addresses, told apart by their
 * shape; NULL-terminated, at most PKI_MAX_NAMES, may be NULL. CGN_INVALID names the name that is neither, or
 * says that |when| is outside the authority's. */
#define PKI_MAX_NAMES 64
CGN_RC pki_make_leaf(const struct pki_pair *ca, const char *common_name, const char *const *names,
	struct pki_validity when, struct pki_pair *out, struct cgn_err *err);

/* What an operator wants to know of the first certificate in a PEM text. */
struct pki_info {
	char subject[256]; /* common name */
	char issuer[256];
	char serial[48];      /* hex */
	char fingerprint[65]; /* SHA-256 of the DER, hex */
	char names[PKI_MAX_NAMES][256];
	size_t n_names; /* more than PKI_MAX_NAMES are cut */
	struct pki_validity when;
	bool is_ca;
};
CGN_RC pki_inspect(struct cgn_str pem, struct pki_info *out, struct cgn_err *err);

/* Did |ca_pem| sign the first certificate of |leaf_pem|? Says nothing about dates. */
CGN_RC pki_signed_by(struct cgn_str leaf_pem, struct cgn_str ca_pem, bool *out, struct cgn_err *err);
