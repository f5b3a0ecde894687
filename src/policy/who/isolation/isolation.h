/* SPDX-License-Identifier: Apache-2.0 */
/* isolation: the salts that keep the caches of tenants apart. A salt is derived from a secret of the cluster and from
 * the tenant, so that only a router can make the salt of another tenant. It enters the digests of
 * prompts and goes to the engine as "cache_salt": blocks of two salts are never the same block. Pure; any thread. */
#pragma once
#include <stdbool.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/digest/digest.h"

/* Characters of a salt: 128 bits as lower-case hex. vLLM takes at most 128 characters. */
#define ISOLATION_SALT       32
#define ISOLATION_FILE_BYTES 4096 /* A longer file is refused. */

/* Read the text of a secret's file: 64 hex digits, with white space around them. CGN_INVALID. */
CGN_RC isolation_secret_read(struct cgn_str text, struct digest *out, struct cgn_err *err);
/* Append the text of a secret's file. */
void isolation_secret_put(const struct digest *secret, struct cgn_buf *out);

/* The owner of a cache is a tenant, or a group of tenants. A tenant never has the salt of a group of that name. */
struct isolation_owner {
	struct cgn_str tenant;
	struct cgn_str group; /* Empty: the tenant shares with no other one. */
};
/* Write the salt of |who|, without a terminator. |own|: the digest of the salt that the client gave itself, which divides
 * the cache of its tenant further; NULL: it gave none. */
void isolation_salt(const struct digest *secret, const struct isolation_owner *who, const struct digest *own,
	char out[ISOLATION_SALT]);
