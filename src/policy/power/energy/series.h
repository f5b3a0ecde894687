/* SPDX-License-Identifier: Apache-2.0 */
/* series: the price of energy, or the carbon in it, over time, as a text. Pure; allocates nothing.
 *
 * Lines "TIME VALUE": seconds since 1970 and a number from 0 on, in order of time; each value holds from its time
 * until the next one's. Empty lines and what follows a # are ignored. */
#pragma once
#include "base/core/err.h"
#include "base/core/str.h"

/* Find the value at |now_s|. INVALID: a sentence with the line. NOT_FOUND: no value has begun, or the one that has
 * is older than |max_age_s|; |err| says which. */
CGN_RC energy_series_at(struct cgn_str text, uint64_t now_s, uint64_t max_age_s, double *out,
	struct cgn_err *err);
