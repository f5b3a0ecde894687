/* SPDX-License-Identifier: Apache-2.0 */
/* rest: which nodes' engines rest, by whose order, and orders of the router's own. For parking and the autoscaler. On the control loop. */
#pragma once
#include "router/control/control/router.h"

/* Is the model to sleep or to be stopped on the node? |m|: its entry, or NULL. */
bool router_rest_wanted(const Cognitora__V1__WantedModel *m, const char *node);
/* May the router decide about the model on the node? An operator's word about the node stands. */
bool router_rest_is_ours(const Cognitora__V1__WantedModel *m, const char *node);

/* An order of the router's, marked as parked. All is borrowed. */
struct router_rest_order {
	const char *model;
	Cognitora__V1__WantedState state;
	const char *const *nodes;
	size_t n; /* At least 1. */
	const char *by;
};
/* Store the order. |done|, with |r|: as of state_models_put. */
CGN_RC router_rest_order(struct router *r, const struct router_rest_order *o,
	void (*done)(void *user, const struct cgn_err *err), struct cgn_err *err);

/* Return whether an engine of the node is ready and serves |model|. */
bool router_node_serves(const struct cluster_node *n, const char *model);
