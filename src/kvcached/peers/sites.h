/* SPDX-License-Identifier: Apache-2.0 */
/* sites: the stores of other sites (kv_sites): what may go there, and whom this store believes there. */
#pragma once
#include "joint/kv/kvpeer/kvpeer.h"
#include "kvcached/daemon/kvcached.h"

/* Return the lists of [kv_sites], which borrow from |cfg|. NULL: there are no sites. */
struct kvsites *sites_open(const struct config *cfg);

struct sites_trust {
	struct tls_ctx *tls[BLOCK_SITES];
	struct kvpeer_site_cfg cfgs[BLOCK_SITES];
	uint64_t failed[BLOCK_SITES]; /* handshakes, as counted last */
	size_t n;
};
/* Read the certificates. CGN_TLS; CGN_INVALID: the CA of a site is that of this one. Call sites_trust_close also after a
 * failure. */
CGN_RC sites_trust_open(struct sites_trust *t, const struct config *cfg, struct cgn_err *err);
/* Read them again: a site whose files cannot be used keeps the ones before. CGN_TLS, CGN_INVALID: the last of these. */
CGN_RC sites_trust_reload(struct sites_trust *t, const struct config *cfg, struct cgn_err *err);
void sites_trust_close(struct sites_trust *t);
/* For --check. */
CGN_RC sites_check(const struct config *cfg, struct cgn_err *err);

/* Set the metrics, and log handshakes that failed. Call about once a second. */
void sites_measure(struct sites_trust *t, struct telemetry *m, const struct kvpeer *kp);
