/* SPDX-License-Identifier: Apache-2.0 */
/* events: a client gets each event of a stream whole. A read that ends with an event is sent at once; the bytes behind its last
 * blank line wait for the rest of their event, so that an answer that breaks off can be followed by an error event. An event of
 * more than GW_EVENT_MOST bytes is sent as it comes; while the client has a part of it, a cut answer is aborted. A stream with a
 * Content-Encoding, and an answer of another type, is sent as it comes. */
#pragma once
#include "router/request/request/request.h"

#define GW_EVENT_MOST ((size_t)256 * 1024)

/* Send |data|, and keep the part of an event at its end. */
void gw_events_send(struct gw_req *r, struct cgn_str data);
/* The answer has ended in good order: send the bytes that wait, as far as they are of use (opening_part_useful). The last event
 * needs no blank line. */
void gw_events_flush(struct gw_req *r);
/* The answer broke off: drop the bytes that wait. Return true if what the client has ends with an event. */
bool gw_events_cut(struct gw_req *r);
