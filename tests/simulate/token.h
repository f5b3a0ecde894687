/* SPDX-License-Identifier: Apache-2.0 */
/* token: keys and tokens of a simulated identity provider (ES256). Call on a fiber. */
#pragma once
#include "base/core/buf.h"

struct token_key {
	char kid[24];
	void *key; /* GnuTLS's */
	struct cgn_buf x, y;
};
void token_key_begin(struct token_key *k, const char *kid);
/* Append the document of the provider's keys. */
void token_keys_put(const struct token_key *const *keys, size_t n, struct cgn_buf *out);
/* Append a token with these claims, a JSON object. |sign| false: "alg" is none, and there is no signature. */
void token_put(const struct token_key *k, const char *claims, bool sign, struct cgn_buf *out);
