/* SPDX-License-Identifier: Apache-2.0 */
/* gpu: the readings of NVML as records. */
#include <string.h>

#include "joint/power/powersrc/host.h"

struct gpu_rows {
	struct power_reading *out, first;
	size_t n;
};

static void row_add(struct gpu_rows *rows, enum power_quantity q, const char *kind, double value)
{
	CGN_MUST(rows->n < POWERSRC_GPU_READINGS);
	struct power_reading *r = &rows->out[rows->n++];
	*r = rows->first;
	r->quantity = q;
	r->value = value;
	(void)snprintf(r->kind, sizeof r->kind, "%s", kind);
}

size_t powersrc_gpu_read(const struct nvml_gpu *gpu, const char *node, cgn_nsec now, cgn_nsec max_age,
	struct power_reading out[POWERSRC_GPU_READINGS])
{
	struct gpu_rows rows = {.out = out,
		.first = {.component = POWER_GPU,
			.source = POWER_FROM_NVML,
			.time = now,
			.max_age = max_age}};
	const struct {
		enum nvml_have have;
		enum power_quantity quantity;
		const char *kind;
		double value;
	} values[] = {
		{NVML_POWER, POWER_WATTS, "", gpu->power_mw / 1e3},
		{NVML_POWER_LIMIT, POWER_LIMIT_WATTS, "", gpu->power_limit_mw / 1e3},
		{NVML_ENERGY, POWER_JOULES, "", (double)gpu->energy_mj / 1e3},
		{NVML_TEMPERATURE, POWER_CELSIUS, "", gpu->temperature_c},
		{NVML_SM_CLOCK, POWER_HERTZ, "sm", gpu->sm_mhz * 1e6},
		{NVML_MEMORY_CLOCK, POWER_HERTZ, "memory", gpu->memory_mhz * 1e6},
		{NVML_MEMORY, POWER_BYTES, "used", (double)gpu->memory_used},
		{NVML_MEMORY, POWER_BYTES, "total", (double)gpu->memory_total},
		{NVML_USE, POWER_SHARE, "sm", gpu->sm_percent / 100.0},
		{NVML_USE, POWER_SHARE, "memory", gpu->memory_percent / 100.0},
	};
	(void)cgn_str_copyz(rows.first.node, sizeof rows.first.node, cgn_str_of(node));
	(void)cgn_str_copyz(rows.first.part, sizeof rows.first.part, cgn_str_of(gpu->uuid));
	for (size_t i = 0; i < CGN_COUNT(values); i++)
		if ((gpu->have & values[i].have) != 0)
			row_add(&rows, values[i].quantity, values[i].kind, values[i].value);
	for (size_t i = 0; (gpu->have & NVML_SLOWED) != 0 && i < power_n_slow_reasons; i++)
		row_add(&rows, POWER_FLAG, power_slow_reasons[i].name,
			(gpu->slowed & power_slow_reasons[i].bit) != 0 ? 1 : 0);
	return rows.n;
}
