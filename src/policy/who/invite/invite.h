/* SPDX-License-Identifier: Apache-2.0 */
/* invite: tokens by which a machine without certificates joins the cluster, and the document of the invites that were
 * made. Pure; any thread.
 *
 * A token is one word: cgnj1/ROLE/NODE/ID/SECRET/CA/ADDRESS. NODE is empty when the machine may choose its name. ID: 16
 * hex digits. SECRET and CA, 32 bytes each: 64 hex digits; CA is the SHA-256 of the certificate (DER) of the cluster's CA.
 * ADDRESS: host:port of the router that signs.
 *
 * The document has a line for each invite, without its secret. An invite is claimed by the first machine that shows the
 * secret: from then on it is for the key of that machine only, so that a machine whose answer was lost can ask again,
 * and no other one can. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "base/crypto/crypto.h"

#define INVITE_ID_DIGITS   16
#define INVITE_SECRET      32   /* Bytes. */
#define INVITE_MAX_TOKEN   1024 /* Bytes of a token. */
#define INVITE_MAX_NAME    128  /* Bytes of a role and of a node. */
#define INVITE_MAX_SANS    512  /* Bytes of all further names of a certificate. */
#define INVITE_MAX_INVITES 256  /* Invites in a document. */

struct invite_token {
	struct cgn_str role, node, id, address; /* Borrowed. |node| may be empty. */
	uint8_t secret[INVITE_SECRET], ca[INVITE_SECRET];
};
/* CGN_INVALID says which part is wrong, and never quotes the secret. */
CGN_RC invite_token_read(struct cgn_str text, struct invite_token *out, struct cgn_err *err);
void invite_token_put(const struct invite_token *t, struct cgn_buf *out);

/* A line of the document; lines that are none are passed over. */
struct invite {
	char id[INVITE_ID_DIGITS + 1];
	char role[INVITE_MAX_NAME + 1], node[INVITE_MAX_NAME + 1]; /* |node| empty: any. */
	char sans[INVITE_MAX_SANS +
		1];           /* Further names of the certificate, with commas between; empty: none. */
	struct sha256 secret; /* Hash of the secret. */
	int64_t ends;         /* Unix seconds; the token is refused from then on. */
	uint32_t days;        /* Validity of the certificate. */
	bool claimed;
	struct sha256 key; /* Claimed: hash of the public key that may ask again. */
};
/* Write the document |text| with |added| to |out|, without invites that ended long before |now|, the time of deletions
 * (policy/who/age). CGN_OVERLOADED: there are INVITE_MAX_INVITES; CGN_INVALID names the part of |added| that cannot stand there; CGN_CONFLICT: the id is taken. */
CGN_RC invite_add(struct cgn_str text, const struct invite *added, int64_t now, struct cgn_buf *out,
	struct cgn_err *err);

/* A request to join. */
struct invite_request {
	struct cgn_str id, role, node; /* As the certificate request names them. */
	struct sha256 secret, key;     /* Hashes of the secret and of the public key. */
};
/* Judge a request: |*found| gets the invite. CGN_OK: sign. *again: the invite is claimed by this key already; else write
 * invite_claim's document first. CGN_UNAUTHENTICATED: no invite, a wrong secret, over, or claimed by another key;
 * CGN_FORBIDDEN: another role or node than the invite's. */
CGN_RC invite_judge(struct cgn_str text, const struct invite_request *rq, int64_t now, struct invite *found,
	bool *again, struct cgn_err *err);
/* Write the document with the request's invite claimed: for its key and its node only. |now|: as invite_add. */
void invite_claim(struct cgn_str text, const struct invite_request *rq, int64_t now, struct cgn_buf *out);
