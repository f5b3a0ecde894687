/* SPDX-License-Identifier: Apache-2.0 */
/* show: a batch as text, and the wait for its end. */
#pragma once
#include "ctl/batch/gateway.h"

/* Fetch the batch |id| into |text|, whose document |out| borrows. INVALID: |id| cannot be an id; BAD_GATEWAY:
 * the answer is not a batch. */
CGN_RC batch_fetch(struct ctl_gateway *g, const char *id, struct cgn_buf *text, struct json_val *out,
	struct cgn_err *err);
/* Print |text|, the batch |b|: as text, or as JSON with -o json. Frees |text|. */
CGN_RC batch_print(const struct ctl_args *a, struct json_val b, struct cgn_buf *text, struct cgn_err *err);
/* Show the progress of |id| every --every until it is over, then print it. CONFLICT: its end is not "completed". */
CGN_RC batch_wait(const struct ctl_args *a, struct ctl_gateway *g, const char *id, struct cgn_err *err);
/* Copy the string |key| of |object| to |out|; "" when there is none or it does not fit. */
void batch_member(struct json_val object, const char *key, char *out, size_t cap);
