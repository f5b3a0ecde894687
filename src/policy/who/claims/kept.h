/* SPDX-License-Identifier: Apache-2.0 */
/* kept: the holder of a token, as the token said when a batch was made with it: a batch may run for longer than the token lives.
 * The token is not part of it. Pure. */
#pragma once
#include "base/core/buf.h"
#include "base/core/str.h"
#include "policy/who/claims/claims.h"

struct claims_kept {
	char issuer[CLAIMS_ISSUER_MAX + 1];
	struct claims_holder who; /* |expires| is not kept. */
};
/* Append a JSON object. */
void claims_kept_put(const struct claims_kept *h, struct cgn_buf *out);

/* Append the object |json| as text without spaces for a field of a request. */
#define CLAIMS_KEPT_MARK "~" /* Begins the text, and no id of a key. */
void claims_kept_field(struct cgn_str json, struct cgn_buf *out);
/* Read such a text. False: it holds no such object. */
bool claims_kept_unfold(struct cgn_str field, struct claims_kept *out);
