/* SPDX-License-Identifier: Apache-2.0 */
/* holder: the roles and the node that a certificate names, in URIs that policy/who/identity reads. */
/* keys, the room: the verbs of certificates, API keys, tokens and secrets. */
#pragma once
#include "io/net/pki/pki.h"
#include "policy/who/identity/identity.h"

#define HOLDER_MAX_ROLES 8
#define HOLDER_FILE_MAX  128 /* Bytes of the name of a certificate's files, with its end. */
#define HOLDER_NODE_MAX  128 /* Bytes of a node's name. */
/* The holder of a certificate, as --leaf names it. */
struct holder {
	char file[HOLDER_FILE_MAX]; /* Name of the certificate's files. */
	char node[HOLDER_NODE_MAX + 1];
	char uris[HOLDER_MAX_ROLES][IDENTITY_URI_MAX];
	size_t n_uris;
	bool told; /* --leaf names roles or the node. */
};
/* Read NAME[=ROLE[+ROLE]...][@NODE]. Without roles: router has that role, agent those of an agent and its
 * block store, admin that of an operator, another built-in role's name that role; any other name is a node,
 * with the roles of agent. "none" is not a role. Without @NODE: |node| for agent and kvcached, else NAME.
 * CGN_INVALID names the error. */
CGN_RC holder_read(const char *leaf, const char *cluster, const char *node, struct holder *out,
	struct cgn_err *err);
bool holder_file_ok(const char *name); /* Can a certificate's files have that name? */
/* Can the certificate |in| become that of |h|? CGN_INVALID: it names another node or cluster. When --leaf told no roles
 * and the certificate has some, those stay and |h| is left without URIs. */
CGN_RC holder_match(const struct pki_info *in, struct holder *h, struct cgn_err *err);
/* Append the roles ("agent, kvcached"), the node, and the other names of a certificate ("localhost, ::1"). */
void holder_show(const struct pki_info *in, struct cgn_buf *roles, struct cgn_buf *node,
	struct cgn_buf *names);
