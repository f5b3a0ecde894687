/* SPDX-License-Identifier: Apache-2.0 */
/* routing: the weights of a score, and the policies that are compared. */
#include "policy/config/config.h"
#include "policy/route/routing/document.h"

static cgn_rc check_weights(const struct config *c, struct cgn_err *err)
{
	double sum = c->router.score_weights.kv + c->router.score_weights.load +
		c->router.score_weights.power + c->router.score_weights.capacity;
	if (sum >= 0.999 && sum <= 1.001)
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"router.score_weights: kv (%s) + load (%s) + power (%s) + capacity (%s) is %.4g, must be 1.0",
		config_origin(c, "router.score_weights.kv"), config_origin(c, "router.score_weights.load"),
		config_origin(c, "router.score_weights.power"),
		config_origin(c, "router.score_weights.capacity"), sum);
}

static cgn_rc check_shadow(const struct config *c, struct cgn_err *err)
{
	const struct config_list *shadow = &c->router.shadow;
	enum route_policy unused;
	struct cgn_err why;
	for (size_t i = 0; i < shadow->n; i++)
		if (!cgn_ok(route_document_policy(cgn_str_of(shadow->v[i]), &unused, &why)))
			return CGN_FAIL(err, INVALID, "%s: router.shadow: %s",
				config_origin(c, "router.shadow"), why.msg);
	return CGN_OK;
}

CGN_RC route_check_config(const struct config *c, struct cgn_err *err)
{
	CGN_TRY(check_weights(c, err));
	return check_shadow(c, err);
}
