/* SPDX-License-Identifier: Apache-2.0 */
/* plot: a self-contained SVG that compares policies: distribution of TTFT, hit ratios, imbalance. */
#pragma once
#include "base/samples/samples.h"

struct plot_case {
	const char *name;
	struct samples *ttft;
	double hit_ratio, imbalance;
};
/* Append the SVG. |title| and names are escaped. |ideal|: value of a line across the hit ratios. |out| is bad
 * on failure. */
void plot_svg(const char *title, const struct plot_case *cases, size_t n, double ideal, struct cgn_buf *out);
