/* SPDX-License-Identifier: Apache-2.0 */
/* budget: how many retries there may be, so that an outage is not amplified by those who flee from it. Each
 * request adds a share of a retry, each retry takes a whole one; beside that there is a small reserve that
 * fills with time, so that a router with little to do may always retry. One worker's: no two threads share
 * one. */
#pragma once
#include <stdbool.h>

#include "base/core/err.h"

#define BUDGET_RATE    10  /* retries a second, whatever the share */
#define BUDGET_RESERVE 50  /* of these that are saved up */
#define BUDGET_MOST    100 /* retries that are saved up from requests */

struct retry_budget {
	double saved;   /* from requests */
	double reserve; /* from time */
	cgn_nsec at;    /* the reserve was filled last; 0: never, then it is full */
};
void retry_budget_add(struct retry_budget *b, double share);  /* a request came */
bool retry_budget_take(struct retry_budget *b, cgn_nsec now); /* false: there is none left */
