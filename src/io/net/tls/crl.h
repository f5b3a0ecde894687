/* SPDX-License-Identifier: Apache-2.0 */
/* crl: lists of revoked certificates (CRLs, RFC 5280, 5) that TLS contexts ask. A file holds one list or more in PEM,
 * each signed by an authority of the CA file. Contexts of this process with the same files share one object, so that a
 * reload reaches all of them at once, their open sessions too. Any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"

struct tls_crl;

/* Get the object of the two files, which is read if no context has it yet. Lists that are over (their next
 * update is in the past) are taken: they are better than none. CGN_TLS names the file, the error and the
 * remedy. The file has at most 4 MiB, about 80,000 certificates, which take 32 bytes of memory each. */
CGN_RC tls_crl_get(const char *file, const char *ca_file, struct tls_crl **out, struct cgn_err *err);
void tls_crl_ref(struct tls_crl *c);
void tls_crl_free(struct tls_crl **take);
/* Has the file another size, inode or time of change than when it was last read? */
bool tls_crl_changed(struct tls_crl *c);
/* Read the file again. On failure, or when the file's lists are over, the old lists stay, and |err| says why. */
CGN_RC tls_crl_reload(struct tls_crl *c, struct cgn_err *err);

struct tls_crl_facts {
	uint64_t made, ends; /* Unix seconds of the list that ends first; |ends| 0: none says when. */
	uint64_t revoked;    /* Certificates in the lists. */
	uint64_t refused;    /* Handshakes refused and sessions ended because of the lists. */
};
struct tls_crl_facts tls_crl_facts(struct tls_crl *c);
