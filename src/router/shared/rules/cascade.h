/* SPDX-License-Identifier: Apache-2.0 */
/* cascade: the settings of router.cascade and of models.NAME.cascade, as part of gw_rules. */
#pragma once
#include "policy/answer/cascade/cascade.h"
#include "policy/config/config.h"

/* The models that a request for the last of them is tried with, in this order. Names are those of the router. */
struct gw_chain {
	struct cgn_str models[CASCADE_MODELS];
	double thresholds
		[CASCADE_MODELS]; /* Least mean log-probability of an answer that passes, by model. */
	unsigned n;
};

struct gw_cascade_rules {
	const struct gw_chain *chains; /* in the arena of the rules */
	size_t n;                      /* 0: there is no cascade */
	double pregate;                /* share of escalations above which the small model is not asked */
	double share;                  /* share of prompts that are asked again; 0: none */
	double max_error; /* most probable error of an answer that passes, once there is a curve */
	uint32_t tokens;  /* tokens that are held back */
};

/* |a| keeps the names. False: out of memory. */
bool gw_cascade_rules_fill(const struct config *cfg, struct cgn_arena *a, struct gw_cascade_rules *out);
/* Return the chain that ends with |model|; NULL: there is none. */
const struct gw_chain *gw_cascade_chain(const struct gw_cascade_rules *rules, struct cgn_str model);
