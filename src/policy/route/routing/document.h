/* SPDX-License-Identifier: Apache-2.0 */
/* document: an operator's settings of routing while routers run. Each member that is present overrides the
 * configuration's router.policy or router.score_weights:
 *
 *   {"policy": "weighted", "weights": {"kv": 0.55, "load": 0.25, "power": 0.1, "capacity": 0.1}}
 *
 * All four weights are given, each from 0 to 1, and they add up to 1 (within ROUTE_SUM_SLACK). Anything else
 * is an error, because the text may be typed by hand. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "policy/route/routing/routing.h"

struct config;

#define ROUTE_SUM_SLACK 1e-6

struct route_document {
	bool has_policy, has_weights;
	enum route_policy policy;
	struct route_weights weights;
};

/* Fails with CGN_INVALID and the reason, in visible ASCII: the author of |text| must not write control
 * characters to operators' terminals. */
CGN_RC route_document_read(struct cgn_str text, struct route_document *out, struct cgn_err *err);
void route_document_write(const struct route_document *d, struct cgn_buf *out); /* As JSON. */
/* Override the members of |rules| that |d| sets. */
void route_document_apply(const struct route_document *d, struct route_rules *rules);
/* Fails with CGN_INVALID, the name, and the known names. */
CGN_RC route_document_policy(struct cgn_str name, enum route_policy *out, struct cgn_err *err);
CGN_RC route_weights_check(const struct route_weights *w, struct cgn_err *err);

/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC route_check_config(const struct config *c, struct cgn_err *err);
