/* SPDX-License-Identifier: Apache-2.0 */
/* nvml: readings of NVIDIA's GPUs: memory, use, power, energy, temperature, clocks, reasons for slowing down. The library
 * is opened at run time (dlopen); nothing is linked. A thread of its own calls it, because a call may take seconds or
 * never return (a GPU that fell off the bus, a driver that is being replaced). Prototypes and numbers: NVIDIA, NVML API
 * Reference Guide vR590. nvml_read and nvml_close: any thread. Memory: some 40 KB. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"

#define NVML_LIBRARY  "libnvidia-ml.so.1"
#define NVML_MAX_GPUS 64

/* Readings that a GPU has; older ones and virtual ones lack some. */
enum nvml_have {
	NVML_MEMORY = 1,
	NVML_USE = 2,
	NVML_POWER = 4,
	NVML_POWER_LIMIT = 8,
	NVML_ENERGY = 16,
	NVML_TEMPERATURE = 32,
	NVML_SM_CLOCK = 64,
	NVML_MEMORY_CLOCK = 128,
	NVML_SLOWED = 256,
};
struct nvml_gpu {
	uint32_t index; /* NVML's, in the order of the PCI bus */
	char uuid[96], name[96];
	unsigned have; /* enum nvml_have */
	uint64_t memory_used, memory_total;
	uint32_t sm_percent,
		memory_percent; /* Share of the time in which a kernel ran, and memory was accessed */
	uint32_t power_mw, power_limit_mw;
	uint64_t energy_mj; /* Since the driver was loaded */
	uint32_t temperature_c, sm_mhz, memory_mhz;
	uint64_t slowed; /* Bits of power_slow_reasons (policy/power/power) */
};
enum nvml_state {
	NVML_STARTING, /* No reading yet */
	NVML_ABSENT,   /* There is no such library; the thread has ended */
	NVML_FAILING,  /* The library or the driver refuses; tried again */
	NVML_READING,
};
struct nvml_view {
	enum nvml_state state;
	char why[200]; /* ABSENT, FAILING: the reason. READING: a GPU that cannot be read; empty: none */
	cgn_nsec call_since; /* A call of the library is under way since then; 0: none */
	uint64_t readings;
	char driver[80];
	size_t n;
	struct nvml_gpu gpu[NVML_MAX_GPUS];
};

struct nvml;
struct nvml_cfg {
	const char *library; /* A path, or a name that the system's linker finds */
	const char *gpus;    /* As CUDA_VISIBLE_DEVICES: "0,2" or "GPU-8a56,..."; NULL: all */
	cgn_nsec interval;
};
/* Start to read. Returns at once; never waits for the library. */
CGN_RC nvml_open(const struct nvml_cfg *cfg, struct nvml **out, struct cgn_err *err);
/* Copy the last readings. Never waits for the library. */
void nvml_read(struct nvml *n, struct nvml_view *out);
/* End the thread. One whose call does not return within a second is left alone, with its memory, until the process
 * ends. */
void nvml_close(struct nvml **take);
