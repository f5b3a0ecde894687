/* SPDX-License-Identifier: Apache-2.0 */
/* certs: authorities, certificates and lists of revoked ones for the machines of a world. Call on a fiber: keys are
 * drawn from the world's seed. Times are Unix seconds. */
#pragma once
#include "../world/world.h"
#include "io/net/pki/pki.h"

struct certs {
	char cluster[32];
	struct pki_pair ca;
	struct cgn_buf crl; /* The list so far; empty: none */
	int64_t from, to;
};
int64_t certs_now(void); /* The wall clock of the calling process's machine */
void certs_begin(struct certs *c, const char *cluster, int64_t from, int64_t to);
/* Write FOLDER/NAME.pem and .key on |h|, for its name and address with |role|, and FOLDER/CLUSTER-ca.pem. */
void certs_leaf(struct certs *c, struct world_host *h, const char *host_name, const char *folder,
	const char *name, const char *role, int64_t from, int64_t to);
void certs_ca_put(struct certs *c, struct world_host *h, const char *folder);
/* Revoke the certificate of FOLDER/NAME.pem on |h|; the new list is in |c->crl|. */
void certs_revoke(struct certs *c, struct world_host *h, const char *folder, const char *name);
void certs_crl_put(struct certs *c, struct world_host *h, const char *folder);
