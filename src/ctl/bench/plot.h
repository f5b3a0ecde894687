/* SPDX-License-Identifier: Apache-2.0 */
/* plot: policies side by side as one SVG file that needs nothing else: how TTFT is distributed, hit ratios,
 * imbalance. */
#pragma once
#include "base/samples/samples.h"

struct plot_case {
	const char *name;
	struct samples *ttft;
	double hit_ratio, imbalance;
};
/* |title| and names are escaped. |ideal|: a line across the hit ratios. Errors are the buffer's. */
void plot_svg(const char *title, const struct plot_case *cases, size_t n, double ideal, struct cgn_buf *out);
