/* SPDX-License-Identifier: Apache-2.0 */
/* pki: make the cluster's certificate authority and the certificates of its nodes, and inspect them. EC P-256,
 * SHA-256, PEM in and out, no files. Time is an argument; keys and serial numbers are drawn by GnuTLS. */
#pragma once
#include <stdbool.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

/* A certificate and its private key as PEM texts, NUL-terminated (the NUL is not counted). */
struct pki_pair {
	struct cgn_buf cert, key;
};
/* Wipe the key and free both texts. */
void pki_pair_fini(struct pki_pair *p);

struct pki_validity {
	int64_t from, to; /* Unix seconds. */
};

/* Make a self-signed authority named |common_name|, which may sign leaves only (path length 0). */
CGN_RC pki_make_ca(const char *common_name, struct pki_validity when, struct pki_pair *out,
	struct cgn_err *err);

/* Make a leaf signed by |ca|, for servers and clients. |names|: DNS names, IP addresses and URIs, recognized by their
 * shape (a URI has "://"); NULL-terminated, at most PKI_MAX_NAMES; may be NULL. CGN_INVALID quotes the name that is neither, or
 * says that |when| is outside the authority's validity. */
#define PKI_MAX_NAMES 64
CGN_RC pki_make_leaf(const struct pki_pair *ca, const char *common_name, const char *const *names,
	struct pki_validity when, struct pki_pair *out, struct cgn_err *err);

/* Make a leaf that replaces |old|: a new key, serial number and validity; subject, names, key usage and all
 * other extensions stay. |more|: names to add where they are missing, as in pki_make_leaf; may be NULL.
 * CGN_INVALID also when |old| is not a certificate or an authority. */
CGN_RC pki_renew_leaf(const struct pki_pair *ca, struct cgn_str old, const char *const *more,
	struct pki_validity when, struct pki_pair *out, struct cgn_err *err);

/* The facts of the first certificate in a PEM text. */
struct pki_info {
	char subject[256]; /* Common name. */
	char issuer[256];
	char serial[48];      /* Hex. */
	char fingerprint[65]; /* SHA-256 of the DER, hex. */
	char names[PKI_MAX_NAMES][256];
	size_t n_names; /* At most PKI_MAX_NAMES; further names are left out. */
	struct pki_validity when;
	bool is_ca;
};
CGN_RC pki_inspect(struct cgn_str pem, struct pki_info *out, struct cgn_err *err);
bool pki_info_has(const struct pki_info *in, const char *name); /* Is |name| one of its names? */
