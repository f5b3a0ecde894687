/* SPDX-License-Identifier: Apache-2.0 */
/* document: what an operator says about choosing while routers run. It beats the configuration's
 * router.policy and router.score_weights, each where it says something:
 *
 *   {"policy": "weighted", "weights": {"kv": 0.55, "load": 0.25, "power": 0.1, "capacity": 0.1}}
 *
 * Both members may be absent. Weights are given all four, from 0 to 1 each, and together 1 (by
 * ROUTE_SUM_SLACK). Anything else in it is a mistake that is told, and not passed over: the text may come
 * from somebody's keyboard. */
#pragma once
#include "base/core/buf.h"
#include "policy/routing/routing.h"

#define ROUTE_SUM_SLACK 1e-6

struct route_document {
	bool has_policy, has_weights;
	enum route_policy policy;
	struct route_weights weights;
};

/* CGN_INVALID says what is wrong with |text|, in visible ASCII: whoever may write it does not write to
 * operators' terminals. */
CGN_RC route_document_read(struct cgn_str text, struct route_document *out, struct cgn_err *err);
void route_document_write(const struct route_document *d, struct cgn_buf *out); /* as JSON */
/* What |d| says about |rules|; the rest of them stays. */
void route_document_apply(const struct route_document *d, struct route_rules *rules);
/* CGN_INVALID: the policy's name, and the names there are. */
CGN_RC route_document_policy(struct cgn_str name, enum route_policy *out, struct cgn_err *err);
CGN_RC route_weights_check(const struct route_weights *w, struct cgn_err *err);
