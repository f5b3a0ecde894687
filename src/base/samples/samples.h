/* SPDX-License-Identifier: Apache-2.0 */
/* samples: durations kept one by one, so that percentiles are exact. 8 bytes for each, 16 more during a sort;
 * at most SAMPLES_MAX. Once one is lost there are no means and percentiles any more: those of the first ones would be wrong. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/json/json.h"

#define SAMPLES_MAX ((size_t)16 << 20)

struct samples {
	struct cgn_buf ns; /* A uint64_t for each sample. */
	uint64_t lost;     /* Samples beyond SAMPLES_MAX, or for which there was no memory. */
	bool sorted;
};
void samples_add(struct samples *s, cgn_nsec v);
size_t samples_count(const struct samples *s);
/* Return the nearest rank; 0 when there are no samples, NaN when one was lost. */
double samples_ms(struct samples *s, double quantile);
double samples_us(struct samples *s, double quantile); /* As samples_ms, in microseconds. */
/* Summed in the order of storage, so that the result is the same on any machine. NaN when a sample was lost. */
double samples_mean_ms(const struct samples *s);
void samples_fini(struct samples *s);
/* Write {"count":..,"mean":..,"p50":..,"p90":..,"p99":..,"max":..} in milliseconds; null when there are no
 * samples, and {"count":..,"lost":..} when some were lost. */
void samples_json(struct samples *s, struct json_out *o);
