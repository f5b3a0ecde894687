/* SPDX-License-Identifier: Apache-2.0 */
/* permit: finds the holder of a request's key or token, and the models that the holder may use. A model that
 * the holder may not use answers like one that does not exist. The name that the request uses counts: an
 * alias and an adapter are names of their own. */
#pragma once
#include "router/request/request/request.h"

/* Check the key or the token, and fill in the request's identity. Refuses the request, returns STEP_AGAIN, or STEP_PARK: it
 * waits for the keys of the identity provider, and this is to be called again. */
enum gw_step gw_permit_key(struct gw_req *r);
/* Refuse a request on the port of a peer whose certificate is not that of a router there: other machines and people of
 * the peer's cluster have certificates of the same CA. */
enum gw_step gw_permit_peer(struct gw_req *r);
/* May the holder use the model of that name? True where no keys are asked for. */
bool gw_permit_model(const struct gw_req *r, struct cgn_str name);
/* Return router.default_model if it may serve the request in place of a model that is missing or unknown; n 0: there is none, the
 * holder may not use it, or another cluster sent the request and means what it names. */
struct cgn_str gw_permit_default(const struct gw_req *r);
/* Note in the audit log that the request was refused, in its caller's name. |why|: a code. */
void gw_permit_note(const struct gw_req *r, const char *action, const char *why);
/* May the holder load and unload the model? True where no keys are asked for; false for another cluster. */
bool gw_permit_change(const struct gw_req *r, struct cgn_str model);
/* As gw_permit_model; a refusal goes to the audit log. */
bool gw_permit_model_noted(const struct gw_req *r, struct cgn_str name);
/* Return a hash of whose request it is: of the key or the account, else of the tenant. */
uint64_t gw_permit_holder(const struct gw_req *r);
