/* SPDX-License-Identifier: Apache-2.0 */
/* audit: the chain of an audit log. Each line is a JSON object that ends with its number and the hash of the line
 * before it:
 *
 *   {"time":"2026-11-23T06:40:00.123Z","program":"cgn-router","event":"POST /nodes/gpu-07/cordon",...,
 *    "seq":41,"prev":"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}
 *
 * prev is the SHA-256 of the bytes of the line before, without its line end; in the first line of a chain it is 64
 * zeros. So a line that is changed, removed, inserted or moved no longer fits its successor. Lines cut off at the end
 * are noticed only by who knows the hash of the last one. Pure; any thread. */
#pragma once
#include <stdbool.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "base/crypto/crypto.h"

#define AUDIT_LINE_MAX ((size_t)8192) /* Bytes of a line, without its end. */

/* The last line of a chain. All zero: the chain has none. */
struct audit_chain {
	uint64_t seq;
	struct sha256 head; /* Hash of the line. */
};

/* Append |line|, a JSON object with at least one member and a line end, to |out| as the line after |c|. */
void audit_seal(const struct audit_chain *c, struct cgn_str line, struct cgn_buf *out);
/* Let |c| end with |line|, which is without its line end, if it is the line after it; CGN_INVALID says why not. */
CGN_RC audit_follow(struct audit_chain *c, struct cgn_str line, struct cgn_err *err);
/* Let |c| end with |line|, whatever came before it. CGN_INVALID: it is not a line of an audit log. */
CGN_RC audit_begin(struct audit_chain *c, struct cgn_str line, struct cgn_err *err);
