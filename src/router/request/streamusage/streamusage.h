/* SPDX-License-Identifier: Apache-2.0 */
/* streamusage: asks engines for the usage of streams whose clients did not ask, and keeps it from those clients: what a
 * request costs must not depend on a member that the client may leave out. OpenAI's chat and text completions only:
 * streams of the other APIs have their usage anyway. */
#pragma once
#include "policy/node/engine/engine.h"
#include "router/request/request/request.h"

/* Return false, with |*fault|, if it is not certain whether the client asks for a stream and its usage. */
bool gw_streamusage_check(const struct gw_req *r, struct body_fault *fault);
/* Decide whether the engine of the request is asked, and take the client's own "stream_options" out of the body then.
 * Call for each body that was read. False: out of memory. */
bool gw_streamusage_plan(struct gw_req *r);
/* The current leg goes to the node or peer in |slot|, whose engine is of |kind| (NULL: unknown). Return the text for the
 * place of the model's name in its body: |name|, with the member "stream_options" behind it, in r->arena. */
struct cgn_str gw_streamusage_name(struct gw_req *r, uint16_t slot, const struct engine_ops *kind,
	struct cgn_str name);
/* Return true if the engine refuses the current leg and names the question: it is to be repeated, without it. The
 * question may stand in an error that has another cause. */
bool gw_streamusage_refused(struct gw_req *r);
/* The engine answers the current leg: a node that refused the request with the question and takes it without is asked
 * no more. */
void gw_streamusage_answered(struct gw_req *r);
/* Return |events|, whole events of the answer, or in |out| a copy of them without the usage that the client did not ask
 * for. */
struct cgn_str gw_streamusage_shown(const struct gw_req *r, struct cgn_str events, struct cgn_buf *out);
