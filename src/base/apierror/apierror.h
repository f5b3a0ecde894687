/* SPDX-License-Identifier: Apache-2.0 */
/* apierror: an error answer in the shape of OpenAI's API, {"error":{"message","type","param","code"}}. */
#pragma once
#include "base/core/buf.h"

struct apierror {
	const char *message, *type;
	const char *param; /* The parameter that is wrong; NULL is written as null. */
	const char *code;  /* NULL: |status| stands for it. */
	int status;
};
/* Append the error as JSON. Errors are the buffer's. */
void apierror_put(struct cgn_buf *out, const struct apierror *e);
/* The type that most errors of that HTTP status have. */
const char *apierror_type(int status);
