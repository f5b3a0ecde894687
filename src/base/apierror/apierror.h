/* SPDX-License-Identifier: Apache-2.0 */
/* apierror: an error answer in the shape of the API that the client speaks:
 *   OpenAI     {"error":{"message","type","param","code"}}
 *   Anthropic  {"type":"error","error":{"type","message"},"request_id"}, with the types of its documentation
 *   Ollama     {"error":"..."} */
#pragma once
#include "base/core/buf.h"

enum apierror_shape { APIERROR_OPENAI, APIERROR_ANTHROPIC, APIERROR_OLLAMA };

struct apierror {
	const char *message, *type;
	const char *param; /* The parameter that is wrong; NULL is written as null. */
	const char *code;  /* NULL: |status| stands for it. */
	int status;        /* Decides the type in Anthropic's shape. */
	enum apierror_shape shape;
	struct cgn_str request_id; /* In Anthropic's shape; empty: none. */
};
/* Append the error as JSON. Errors are the buffer's. */
void apierror_put(struct cgn_buf *out, const struct apierror *e);
/* The type that most errors of that HTTP status have in OpenAI's shape. */
const char *apierror_type(int status);
/* The shape that clients of |path| expect; the path may have a query. */
enum apierror_shape apierror_shape_of(struct cgn_str path);
