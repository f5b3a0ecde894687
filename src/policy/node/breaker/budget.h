/* SPDX-License-Identifier: Apache-2.0 */
/* budget: limits the retries of a worker, so that retries do not amplify an outage. Each request adds a share
 * of a retry, each retry takes a whole one. A small reserve fills with time, so that a router with few
 * requests can always retry. Belongs to one thread. */
#pragma once
#include <stdbool.h>

#include "base/core/err.h"

#define BUDGET_RATE    10  /* Retries a second that fill the reserve, whatever the share is. */
#define BUDGET_RESERVE 50  /* Most retries in the reserve. */
#define BUDGET_MOST    100 /* Most retries saved from requests. */

struct retry_budget {
	double saved;   /* Retries saved from requests. */
	double reserve; /* Retries in the reserve. */
	cgn_nsec at;    /* Time when the reserve was last filled; 0: never filled, the reserve is full. */
};
void retry_budget_add(struct retry_budget *b, double share);  /* Count a request. */
bool retry_budget_take(struct retry_budget *b, cgn_nsec now); /* Take a retry; false: none is left. */
