/* SPDX-License-Identifier: Apache-2.0 */
/* billing, inside: the rows. */
#pragma once
#include "policy/who/billing/billing.h"

struct billing_row {
	struct billing_names names; /* The tenant owns the memory of all three. */
	struct billing_amounts sum;
};
struct billing_hour {
	uint64_t hour;
	struct billing_row *rows;
	size_t n, cap;
};
#define BILLING_SPOTS ((size_t)2 * BILLING_ROWS)
struct billing {
	uint32_t tag;
	struct billing_hour hours[BILLING_HOURS]; /* In order of time. */
	size_t n;
	uint64_t version;
	uint64_t spots_of;             /* The hour that |spots| are of. */
	uint16_t spots[BILLING_SPOTS]; /* Index of a row plus one; 0: free. */
};
#define BILLING_TAG 0x1ed6e701U

void billing_sum(struct billing_amounts *to, const struct billing_amounts *more);
/* Return the first hour that is not before |hour|, or |l->n|. */
size_t billing_at(const struct billing *l, uint64_t hour);
