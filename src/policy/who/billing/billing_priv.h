/* SPDX-License-Identifier: Apache-2.0 */
/* billing, inside: the rows. */
#pragma once
#include "base/table/table.h"
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
struct billing {
	uint32_t tag;
	struct billing_hour hours[BILLING_HOURS]; /* In order of time. */
	size_t n;
	uint64_t version;
	uint64_t table_of;  /* The hour of |table|. */
	struct table table; /* Indices of the hour's rows. */
};
#define BILLING_TAG 0x1ed6e701U

void billing_sum(struct billing_amounts *to, const struct billing_amounts *more);
/* Return the first hour that is not before |hour|, or |l->n|. */
size_t billing_at(const struct billing *l, uint64_t hour);
