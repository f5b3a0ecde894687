/* SPDX-License-Identifier: Apache-2.0 */
/* relay: an engine's answer to the client, byte for byte, and its end. */
/* answer, the room: the answer of an engine or of the router itself on its way to the client, and its continuation by another engine. */
#pragma once
#include "router/request/limit/limit.h"

/* Write the fields that the router itself gives each answer of an engine; returns how many. Their strings live
 * as long as the request. */
#define GW_RELAY_FIELDS (8 + GW_LIMIT_FIELDS)
size_t gw_relay_fields(struct gw_req *r, struct http_field *f);
/* Tells a client that Prefer: if-available was obeyed (RFC 7240, section 3). */
#define GW_PREFERENCE_APPLIED ((struct http_field){CGN_STR("preference-applied"), CGN_STR("if-available")})
/* Send the head of the attempt's answer to the client. */
void gw_relay_head(struct gw_req *r);
/* Relay |data| of the engine, through the resume filter if the answer is resumable. Does nothing when the
 * client has left. Pauses the engine for a slow client. */
void gw_relay(struct gw_req *r, struct cgn_str data);
/* Send |data| to the client as it is. */
void gw_relay_bytes(struct gw_req *r, struct cgn_str data);
/* Bytes of an answer that are kept while the prefill leg's number of cached tokens is not known. */
#define GW_HELD_MAX ((size_t)256 * 1024)
/* Relay the bytes that wait for that number: it is known now, or never will be. */
void gw_relay_release(struct gw_req *r);
/* Send the held bytes, and end the answer. */
void gw_relay_finish(struct gw_req *r);
/* End the answer to the client. An event stream ends with the trailer X-Cgn-Joules where the client reads trailers
 * (TE) and the node's energy is counted: its head was sent before the joules were known. */
void gw_relay_close(struct gw_req *r);
/* End the answer, whose engine ended in good order, and go to GW_ANSWER. */
enum gw_step gw_relay_end(struct gw_req *r);
/* Cut a half-sent answer, and go to GW_ANSWER. An event stream ends with an error event and without [DONE]; any
 * other body is aborted, so that no client takes half of it for all. |why| is for the log. */
enum gw_step gw_relay_cut(struct gw_req *r, const char *why);
