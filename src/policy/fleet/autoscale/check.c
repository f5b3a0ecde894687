/* SPDX-License-Identifier: Apache-2.0 */
/* autoscale: its settings, and the replicas of models. */
#include "policy/config/config.h"
#include "policy/fleet/autoscale/autoscale.h"

static cgn_rc check_replicas(const struct config *c, struct cgn_err *err)
{
	for (size_t i = 0; i < c->n_models; i++) {
		struct config_replicas unused;
		if (c->models[i].replicas != NULL &&
			!config_replicas_read(cgn_str_of(c->models[i].replicas), &unused))
			return CGN_FAIL(err, INVALID,
				"models.\"%s\".replicas is \"%s\", must be the least and the most, such as \"1-4\"; the most is at least 1",
				c->models[i].name, c->models[i].replicas);
	}
	return CGN_OK;
}

/* Nodes that are not there yet cannot be counted, and a model without a node is unknown: the limits have to be said. */
static cgn_rc check_scale_target(const struct config *c, struct cgn_err *err)
{
	const int target = c->router.autoscaler.target;
	if (target == CONFIG_SCALE_AGENTS)
		return CGN_OK;
	if (target == CONFIG_SCALE_EXEC && c->router.autoscaler.exec.n == 0)
		return CGN_FAIL(err, INVALID,
			"router.autoscaler.target is exec, and router.autoscaler.exec names no program: set it to the program and its arguments, such as [\"/usr/local/bin/scale\", \"--group\", \"gpu\"]");
	if (target == CONFIG_SCALE_WEBHOOK && c->router.autoscaler.webhook_url == NULL)
		return CGN_FAIL(err, INVALID,
			"router.autoscaler.target is webhook, and router.autoscaler.webhook_url is not set");
	if (c->router.autoscaler.max_replicas == 0 || c->router.autoscaler.min_replicas == 0)
		return CGN_FAIL(err, INVALID,
			"router.autoscaler.target is %s: min_replicas and max_replicas have to be at least 1 (they are %u and %u)",
			config_enum_text(target), c->router.autoscaler.min_replicas,
			c->router.autoscaler.max_replicas);
	return config_check_url(c, "router.autoscaler.webhook_url", c->router.autoscaler.webhook_url, err);
}

CGN_RC autoscale_check_config(const struct config *c, struct cgn_err *err)
{
	CGN_TRY(check_replicas(c, err));
	if (!c->router.autoscaler.enabled)
		return CGN_OK;
	CGN_TRY(check_scale_target(c, err));
	if (c->router.autoscaler.max_replicas > 0 &&
		c->router.autoscaler.max_replicas < c->router.autoscaler.min_replicas)
		return CGN_FAIL(err, INVALID,
			"%s: router.autoscaler.max_replicas (%u) is less than router.autoscaler.min_replicas (%u)",
			config_origin(c, "router.autoscaler.max_replicas"), c->router.autoscaler.max_replicas,
			c->router.autoscaler.min_replicas);
	if (c->router.energy.park != CONFIG_PARK_OFF)
		return CGN_FAIL(err, INVALID,
			"%s: router.energy.park and router.autoscaler.enabled both decide which engines rest: set park to off, the autoscaler spares the same energy",
			config_origin(c, "router.energy.park"));
	return CGN_OK;
}
