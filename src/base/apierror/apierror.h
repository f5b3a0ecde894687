/* SPDX-License-Identifier: Apache-2.0 */
/* apierror: an error answer in the shape of the API that the client speaks:
 *   OpenAI     {"error":{"message","type","param","code"}}
 *   Anthropic  {"type":"error","error":{"type","message"},"request_id"}, with the types of its documentation
 *   Ollama     {"error":"..."} */
#pragma once
#include "base/core/buf.h"
#include "base/json/json.h"

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
/* Find the error in |root|, an answer of an engine or one of its events, whatever its status is:
 *   {"error":...}                         OpenAI, Anthropic, Ollama, llama.cpp
 *   {"object":"error","message":...}      SGLang, older vLLM; {"type":"error",...} too
 *   {"status":"error",...}
 *   {"detail":...}                        FastAPI, without an answer beside it
 *   {"message":"...","code":...}          the inside of an error, with "code" or "type", without an answer beside it
 * |*out|: the member that says what failed, of any type. False: there is none, or |root| is not an object. */
bool apierror_find(struct json_val root, struct json_val *out);
/* Return true if |reason|, a finish_reason, is that of an answer which failed: it does not count as an
 * answer, however much came. Case and blanks around it do not matter. */
bool apierror_reason(struct cgn_str reason);
/* Append the text of |error|, which apierror_find gave: its message, or its JSON. */
void apierror_text(struct json_val error, struct cgn_buf *out);
/* A response of /v1/responses that fails while it is streamed. */
struct apierror_response {
	struct cgn_str id, model; /* |id| empty: the client has not seen one */
	uint64_t created;         /* seconds since 1970 */
	uint64_t sequence;        /* sequence_number of the event */
};
/* Append the event that ends a stream with the error |e|. |of| NULL: an "error" in the shape |e->shape|. Else, in OpenAI's
 * Responses API, "response.failed" for a response with an id, and its "error" without one. */
void apierror_event_put(struct cgn_buf *out, const struct apierror *e, const struct apierror_response *of);
/* Find the last sequence_number in |tail|, the end of a stream of that API. False: there is none. */
bool apierror_sequence_find(struct cgn_str tail, uint64_t *out);

/* The type that most errors of that HTTP status have in OpenAI's shape. */
const char *apierror_type(int status);
/* The shape that clients of |path| expect; the path may have a query. */
enum apierror_shape apierror_shape_of(struct cgn_str path);
