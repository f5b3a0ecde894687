/* SPDX-License-Identifier: Apache-2.0 */
/* samples: durations kept one by one, so that percentiles are exact. 8 bytes each, 16 more while they are
 * sorted; at most SAMPLES_MAX. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/json/json.h"

#define SAMPLES_MAX ((size_t)16 << 20)

struct samples {
	struct cgn_buf ns; /* uint64_t each */
	uint64_t lost;     /* beyond SAMPLES_MAX */
	bool sorted;
};
void samples_add(struct samples *s, cgn_nsec v);
size_t samples_count(const struct samples *s);
double samples_ms(struct samples *s, double quantile); /* 0 when empty; nearest rank */
/* in the order in which they are kept: the same on any machine */
double samples_mean_ms(const struct samples *s);
void samples_fini(struct samples *s);
/* {"count":..,"mean":..,"p50":..,"p90":..,"p99":..,"max":..} in milliseconds; null when empty */
void samples_json(struct samples *s, struct json_out *o);
