/* SPDX-License-Identifier: Apache-2.0 */
/* cascade: the shell of policy/answer/cascade: which model is asked, the bodies of legs that are held back, and the
 * kept parts of their answers. plan/gate.c drives it. Memory of a leg that is held: a copy of the body, and
 * at most GW_CASCADE_HELD bytes of the answer; both count in router.max_inflight_body. */
#pragma once
#include "router/request/request/cascade.h"
#include "router/request/request/request.h"

#define GW_CASCADE_HELD ((size_t)4 * 1024 * 1024)

/* The body was read and the plan opened: decide which model is asked first. False: the request is refused. */
bool gw_cascade_open(struct gw_req *r);
void gw_cascade_drop(struct gw_req *r);
/* Count |outcome| of the current step, a label of cgn_cascade_total, for |why|, a label or NULL. */
void gw_cascade_note(struct gw_req *r, const char *outcome, const char *why);

/* ---- the legs ---- */

/* Is the current leg held back? */
bool gw_cascade_is_held(const struct gw_req *r);
/* Return true if an engine of the current leg's model can't be judged, which the log then says. */
bool gw_cascade_is_barred(const struct gw_req *r);
/* Return true if the current leg's answer would hardly pass, by the rates of such requests. The prompt's
 * chain is there. */
bool gw_cascade_is_hopeless(struct gw_req *r);
/* Does a calibration decide which answers pass? */
bool gw_cascade_is_calibrated(const struct gw_req *r);
/* Return why the small model of the current leg may answer no client yet, a label; NULL: it may. */
const char *gw_cascade_distrust(struct gw_req *r);
/* The current leg's answer, which has tokens to judge by, was judged. */
void gw_cascade_learn(struct gw_req *r, bool escalated);
/* Let the current leg, which is held and was not sent, be one of the next model, for |why|. The request stays in
 * GW_ROUTE. */
void gw_cascade_skip(struct gw_req *r, const char *why);
/* Give |g| the body of the current leg, if it is held. */
void gw_cascade_write(struct gw_req *r, struct proto_generate *g);
/* A new leg has become the current one: make the request one for its model. */
void gw_cascade_follow(struct gw_req *r);

/* ---- held.c: the answer that is held ---- */

void gw_cascade_begin(struct gw_req *r);
void gw_cascade_add(struct gw_req *r, struct cgn_str data);
/* Judge the bytes that have come. A document is judged once it is whole. */
enum cascade_verdict gw_cascade_judge(struct gw_req *r);
/* The answer is not shown: note the tokens that its model computed, and free it. */
void gw_cascade_reject(struct gw_req *r);
/* The answer is shown: move the held bytes to |out|. */
void gw_cascade_release(struct gw_req *r, struct cgn_buf *out);

/* ---- the answer that is shown ---- */

/* Return |data|, or in |out| a copy of it without log-probabilities that the client did not ask for. */
struct cgn_str gw_cascade_stripped(struct gw_req *r, struct cgn_str data, struct cgn_buf *out);
/* The answer has ended: append the kept bytes. */
void gw_cascade_flush(struct gw_req *r, struct cgn_buf *out);
/* Write the field X-Cgn-Cascade-Step; returns 0 if no cascade was considered. */
size_t gw_cascade_field(struct gw_req *r, struct http_field *f);
