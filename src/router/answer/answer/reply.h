/* SPDX-License-Identifier: Apache-2.0 */
/* reply: answers that no engine is asked for. */
#pragma once
#include "router/request/request/request.h"

/* Answer a request whose route the router serves itself. Goes to GW_ANSWER. */
enum gw_step gw_reply_local(struct gw_req *r);
/* Send |b|, a document of JSON, as the whole answer and go to GW_ANSWER; refuse the request when |b| is bad. */
enum gw_step gw_reply_json(struct gw_req *r, int status, const struct cgn_buf *b);
/* Answer a request to count the tokens of a prompt, if they are known exactly. False: an engine has to count. */
bool gw_reply_count(struct gw_req *r);
/* The state GW_ANSWER: send a refusal that is pending, then wait until the client has taken everything. */
enum gw_step gw_answer(struct gw_req *r);
/* Send |b| as the whole answer and go to GW_ANSWER; refuse the request when |b| is bad. |type|: its media
 * type. */
enum gw_step gw_reply_typed(struct gw_req *r, int status, const char *type, const struct cgn_buf *b);
