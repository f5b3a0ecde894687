/* SPDX-License-Identifier: Apache-2.0 */
/* enginecall: a client's request as an engine gets it by HTTP/1.1, and the engine's answer as it is relayed. The
 * agent and the router, where it goes straight to an engine, say the same to the engine and to the client. */
#pragma once
#include "io/wire/http/client.h"
#include "policy/node/proto/proto.h"

/* uvicorn (vLLM, SGLang) and cpp-httplib (llama-server) close a connection that is idle for 5 s. A request sent
 * on the connection at that moment gets no answer, and one that is not retried, such as a slot's save, is
 * lost. */
#define ENGINECALL_IDLE (4 * CGN_SEC)

/* Check the fields that reach the engine's connection. Their sender is trusted, and nothing that was sent
 * may still become a second request there. CGN_INVALID names the field. */
CGN_RC enginecall_check(const struct proto_generate *rq, struct cgn_err *err);
/* Write the request fields for the engine; returns how many. They borrow from |rq| and |authorization|, the value
 * of that field, or NULL. */
#define ENGINECALL_FIELDS (PROTO_MAX_HEADERS + 2)
size_t enginecall_fields(const struct proto_generate *rq, const char *authorization,
	struct http_field out[ENGINECALL_FIELDS]);
/* Write the fields of an answer that are relayed; returns how many. They borrow from |h|. */
size_t enginecall_head(const struct http_head *h, struct proto_header out[PROTO_MAX_HEADERS]);
/* Set |out| to the error that a client gets for a call that failed. CGN_OVERLOADED and CGN_NO_MEMORY: this
 * process lacks something, which says nothing of the engine. CGN_UNAVAILABLE: the engine failed. |out| is not
 * |why|. */
void enginecall_failed(const char *engine, enum http_fail_stage stage, const struct cgn_err *why,
	struct cgn_err *out);
/* Set the code of |out|, a result of enginecall_failed, to CGN_INTERNAL if the engine hung up on the request, which may have killed
 * it: gRPC has a status of its own for that code. |retried|: the request was sent twice, because a kept connection was closed. */
void enginecall_hung_up(enum http_fail_stage stage, bool retried, struct cgn_err *out);

/* Gathers the pieces of an answer that arrive within one turn of the loop: events that an engine wrote one by one
 * often arrive in one read. At most 16 KiB. One loop, its thread. */
struct enginecall_gather {
	struct cgn_loop *loop;
	struct cgn_buf bytes;
	struct cgn_hook hook; /* Runs at the end of the turn in which bytes came; set by the owner. */
};
/* Keep a piece, and let the hook run at the end of the turn. False: it is large, or there is no room or
 * memory: take the gathered pieces and relay them, then the piece itself. */
bool enginecall_gather_add(struct enginecall_gather *g, const void *p, size_t n);
/* Return the gathered pieces, which the caller frees; there is nothing left, and the hook does not run. */
struct cgn_buf enginecall_gather_take(struct enginecall_gather *g);
