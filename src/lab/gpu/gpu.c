/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/gpu/gpu.h"

#include <string.h>

static const struct gpu rows[] = {
	{.name = "h100",
		.watts = {{120, 267, 303, 339, 375, 411, 447, 483, 519, 555}, 680},
		.parked_w = 70,
		.loading_w = 185,
		.limit_w = 700,
		.decode_share = 1},
	{.name = "h200",
		.watts = {{118, 137, 191, 245, 300, 354, 408, 463, 517, 555}, 593},
		.parked_w = 80,
		.loading_w = 185,
		.limit_w = 700,
		.decode_share = 0.7},
};

const struct gpu *gpu_find(const char *name)
{
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (strcmp(rows[i].name, name) == 0)
			return &rows[i];
	return NULL;
}
