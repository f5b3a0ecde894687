/* SPDX-License-Identifier: Apache-2.0 */
/* nvml clocks: limit the SM clocks of NVIDIA's GPUs. Calls may take seconds or never return, so they belong into a process
 * of their own (io/os/clockhold). One thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"

#define NVML_MAX_CLOCKS 256

struct nvml_clock_gpu {
	uint32_t index;
	char uuid[96];
	uint32_t n;                    /* Supported SM clocks; 0: unknown */
	uint16_t mhz[NVML_MAX_CLOCKS]; /* At the highest clock of the memory */
	bool limited;                  /* The driver says that a setting keeps the clocks below the highest */
};
struct nvml_clocks;
/* Open the library at |path|. NOT_FOUND: there is none. UNSUPPORTED: it cannot lock clocks. UNAVAILABLE: the driver
 * refuses. */
CGN_RC nvml_clocks_open(const char *path, struct nvml_clocks **out, struct cgn_err *err);
void nvml_clocks_close(struct nvml_clocks **take);
/* Read the GPUs that |list| names (struct nvml_cfg), at most |cap|; a GPU that cannot be read is left out. Returns their
 * number. */
size_t nvml_clocks_gpus(struct nvml_clocks *c, const char *list, struct nvml_clock_gpu *out, size_t cap);
/* Read the GPU |uuid|. False: it is not there now. */
bool nvml_clocks_find(struct nvml_clocks *c, const char *uuid, struct nvml_clock_gpu *out);
/* Keep the SM clock of |gpu| between |low_mhz| and |high_mhz| until nvml_clocks_reset, also after this process has ended.
 * FORBIDDEN: the driver wants more rights. UNAVAILABLE: any other failure. */
CGN_RC nvml_clocks_lock(struct nvml_clocks *c, const struct nvml_clock_gpu *gpu, uint32_t low_mhz,
	uint32_t high_mhz, struct cgn_err *err);
CGN_RC nvml_clocks_reset(struct nvml_clocks *c, const struct nvml_clock_gpu *gpu, struct cgn_err *err);
