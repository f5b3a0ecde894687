/* SPDX-License-Identifier: Apache-2.0 */
/* budget: how many retries a worker may make, so that retries do not amplify an outage. Each request adds a share
 * of a retry, each retry takes a whole one. A small reserve fills with time, so that a router with few requests
 * may always retry. Belongs to one thread. */
#pragma once
#include <stdbool.h>

#include "base/core/err.h"

#define BUDGET_RATE    10  /* retries a second, whatever the share */
#define BUDGET_RESERVE 50  /* retries that the reserve holds at most */
#define BUDGET_MOST    100 /* retries saved from requests at most */

struct retry_budget {
	double saved;   /* from requests */
	double reserve; /* from time */
	cgn_nsec at;    /* when the reserve was filled last; 0: never, and it is full */
};
void retry_budget_add(struct retry_budget *b, double share);  /* a request came */
bool retry_budget_take(struct retry_budget *b, cgn_nsec now); /* false: there is none left */
