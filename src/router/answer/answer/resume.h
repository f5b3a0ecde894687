/* SPDX-License-Identifier: Apache-2.0 */
/* resume: keeps the parts from which another engine can continue an answer. While a resumable answer runs,
 * the client's body and the text that was shown are kept, within router.resume_size. */
#pragma once
#include "base/json/json.h"
#include "router/request/request/request.h"

/* Set |*out|: the answer shall be resumable, by X-Cgn-Resume or router.resume, and not where X-Cgn-Retry is off. False when X-Cgn-Resume makes no sense:
 * then the request is refused. */
bool gw_resume_asked(struct gw_req *r, bool *out);
/* Prepare to resume the answer to |body|, or set r->answer.unresumable. Any thread. */
void gw_resume_open(struct gw_req *r, struct json_val body);
void gw_resume_drop(struct gw_req *r);

/* ---- while an engine answers ---- */

/* The answer begins: take over the body, or give up resuming. */
void gw_resume_keep(struct gw_req *r);
void gw_resume_relay(struct gw_req *r, struct cgn_str data);
/* The engine ended in good order: relay the held bytes. */
void gw_resume_flush(struct gw_req *r);

/* Return true if an engine does not repeat the answer that it was to repeat: the answer ends here. */
bool gw_resume_differs(const struct gw_req *r);

/* ---- when it breaks off ---- */

/* Return the missing part of the answer, and count an answer that was to be resumed and can't be. */
enum plan_missing gw_resume_missing(struct gw_req *r);
/* End an answer that lacks nothing that an engine would have to compute, and go to GW_ANSWER. */
enum gw_step gw_resume_complete(struct gw_req *r);
/* Make r->body the one that continues the answer, in the shape that is used to look for a node. False: out of
 * memory. */
bool gw_resume_prepare(struct gw_req *r);
/* Return how many bytes of text the client was shown, which another engine is to continue. */
size_t gw_resume_shown(const struct gw_req *r);
/* Return the slots of nodes that were tried or can't continue the answer, and set |*n|. Borrowed until the
 * next call. */
const uint16_t *gw_resume_excluded(struct gw_req *r, size_t *n);
/* Make r->body the one for |node|. False: out of memory. */
bool gw_resume_send(struct gw_req *r, const struct view_node *node);
/* Return true if an engine that continues like |how| (NULL: it can't) can go on with the answer. */
bool gw_resume_fits(const struct gw_req *r, const struct engine_resume *how);
/* Make r->body the one for such an engine. False: out of memory. */
bool gw_resume_send_as(struct gw_req *r, const struct engine_resume *how);
/* Return why the engine's stream, which ended in good order, is not whole: it ended inside an event, or without the end that its
 * dialect has. NULL: it is whole, or can't be told from one. */
const char *gw_resume_breaks_off(const struct gw_req *r);
/* Use the engine's bytes as the continuation: its first ones are there. */
void gw_resume_begin(struct gw_req *r);
/* The answer is not continued: count |outcome|, and keep it for the access log and the sentence |why| for the client. */
void gw_resume_deny(struct gw_req *r, const char *outcome, const char *why);
