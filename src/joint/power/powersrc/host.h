/* SPDX-License-Identifier: Apache-2.0 */
/* host: the readings of the machine that this program runs on, as records of policy/power/power: RAPL (Linux powercap: CPU
 * packages and their DRAM), hwmon (power meters, supplies on PMBus, GPUs of AMD, energy counters), and the GPUs that
 * io/os/nvml reads. Files of sysfs are read at once and do not block; most systems let only root read RAPL. At most 64
 * sensors. One thread. Memory: some 40 KB. */
#pragma once
#include "io/os/nvml/nvml.h"
#include "policy/power/power/power.h"

#define POWERSRC_HWMON        "class/hwmon" /* Below sysfs */
#define POWERSRC_MAX_SENSORS  64
#define POWERSRC_MAX_READINGS (2 * POWERSRC_MAX_SENSORS) /* A counter gives its energy and its power */

/* A file with a number. */
struct powersrc_sensor {
	char path[280];
	char part[POWER_NAME_BYTES], kind[24];
	enum power_component component;
	enum power_source source;
	bool is_counter; /* Microjoules; else microwatts */
	struct power_counter counter;
};
struct powersrc_host {
	struct powersrc_sensor sensor[POWERSRC_MAX_SENSORS];
	size_t n;
};
/* Find the sensors below the two folders; there may be none. */
void powersrc_host_init(struct powersrc_host *h, const char *powercap_root, const char *hwmon_root);
/* Read the sensors into |out|, which has room for POWERSRC_MAX_READINGS; returns their number. A counter tells its power
 * from the second call on. |max_age|: of the readings. */
size_t powersrc_host_read(struct powersrc_host *h, const char *node, cgn_nsec now, cgn_nsec max_age,
	struct power_reading *out);

/* The most readings of one GPU: power, its limit, energy, temperature, two clocks, memory used and in all, two shares, and
 * a flag for each reason of slowing down. */
#define POWERSRC_GPU_READINGS 24
/* Write NVML's readings of a GPU, taken at |now|; returns the number of readings. */
size_t powersrc_gpu_read(const struct nvml_gpu *gpu, const char *node, cgn_nsec now, cgn_nsec max_age,
	struct power_reading out[POWERSRC_GPU_READINGS]);
