/* SPDX-License-Identifier: Apache-2.0 */
/* adminrelay: answers a request of an admin port with what another HTTP server says to it. The answer is passed on as it
 * comes: status, content-type, Retry-After, X-Request-Id, the fields x-cgn-*, and the body, at the pace of the client. A
 * client that leaves ends the request. One loop, its thread. Memory: what http_call holds. */
#pragma once
#include "io/wire/http/client.h"
#include "joint/daemon/svc/svc.h"

/* Ask |client| for |rq|, and let |reply| be answered later. A server that does not answer gives a 502 with the error code
 * |code|; an answer that is cut is cut for the client too. CGN_FAIL: nothing was sent, and |reply| is as it was. */
CGN_RC adminrelay_start(struct svc_admin_reply *reply, struct http_client *client,
	const struct http_request *rq, const char *code, struct cgn_err *err);
