/* SPDX-License-Identifier: Apache-2.0 */
#include "io/os/nvml/clocks.h"

#include <stdlib.h>
#include <string.h>

#include "io/os/nvml/nvml_priv.h"

#define MEMORY_CLOCKS 64
#define CLOCK_SETTING 2 /* nvmlClocksEventReasonApplicationsClocksSetting */

struct nvml_clocks {
	struct nvml_lib lib;
};

CGN_RC nvml_clocks_open(const char *path, struct nvml_clocks **out, struct cgn_err *err)
{
	struct nvml_lib lib;
	CGN_TRY(nvml_lib_open(path, &lib, err));
	if (lib.lock == NULL || lib.unlock == NULL || lib.uuid == NULL) {
		nvml_lib_close(&(struct nvml_lib){.handle = lib.handle});
		return CGN_FAIL(err, UNSUPPORTED,
			"%s has no nvmlDeviceSetGpuLockedClocks: this driver cannot lock clocks", path);
	}
	int result = lib.init();
	if (result != NVML_LIB_SUCCESS) {
		cgn_rc rc = CGN_FAIL(err, UNAVAILABLE, "nvmlInit: %s", nvml_lib_error(&lib, result));
		nvml_lib_close(&(struct nvml_lib){.handle = lib.handle});
		return rc;
	}
	struct nvml_clocks *c = CGN_NEW(struct nvml_clocks);
	c->lib = lib;
	*out = c;
	return CGN_OK;
}

void nvml_clocks_close(struct nvml_clocks **take)
{
	if (*take != NULL)
		nvml_lib_close(&(*take)->lib);
	free(*take);
	*take = NULL;
}

/* Fill in the SM clocks that go with the highest clock of the memory. */
static void supported_read(const struct nvml_lib *l, nvml_device d, struct nvml_clock_gpu *out)
{
	unsigned memory[MEMORY_CLOCKS], mhz[NVML_MAX_CLOCKS], n = MEMORY_CLOCKS, highest = 0;
	if (l->memory_clocks == NULL || l->sm_clocks == NULL ||
		l->memory_clocks(d, &n, memory) != NVML_LIB_SUCCESS || n > MEMORY_CLOCKS)
		return;
	for (unsigned i = 0; i < n; i++)
		highest = memory[i] > highest ? memory[i] : highest;
	n = NVML_MAX_CLOCKS;
	if (l->sm_clocks(d, highest, &n, mhz) != NVML_LIB_SUCCESS || n > NVML_MAX_CLOCKS)
		return;
	for (unsigned i = 0; i < n; i++)
		if (mhz[i] > 0 && mhz[i] <= UINT16_MAX)
			out->mhz[out->n++] = (uint16_t)mhz[i];
}

static bool clock_gpu_read(struct nvml_clocks *c, unsigned index, struct nvml_clock_gpu *out)
{
	const struct nvml_lib *l = &c->lib;
	unsigned long long slowed = 0;
	nvml_device d = NULL;
	*out = (struct nvml_clock_gpu){.index = index};
	if (l->device(index, &d) != NVML_LIB_SUCCESS ||
		l->uuid(d, out->uuid, sizeof out->uuid) != NVML_LIB_SUCCESS)
		return false;
	out->uuid[sizeof out->uuid - 1] = '\0';
	if (l->slowed != NULL && l->slowed(d, &slowed) == NVML_LIB_SUCCESS)
		out->limited = (slowed & CLOCK_SETTING) != 0;
	supported_read(l, d, out);
	return true;
}

size_t nvml_clocks_gpus(struct nvml_clocks *c, const char *list, struct nvml_clock_gpu *out, size_t cap)
{
	unsigned count = 0;
	size_t n = 0;
	if (c->lib.count(&count) != NVML_LIB_SUCCESS)
		return 0;
	for (unsigned i = 0; i < count && n < cap; i++)
		if (clock_gpu_read(c, i, &out[n]) && nvml_lib_listed(list, i, out[n].uuid))
			n++;
	return n;
}

bool nvml_clocks_find(struct nvml_clocks *c, const char *uuid, struct nvml_clock_gpu *out)
{
	unsigned count = 0;
	if (c->lib.count(&count) != NVML_LIB_SUCCESS)
		return false;
	for (unsigned i = 0; i < count; i++)
		if (clock_gpu_read(c, i, out) && strcmp(out->uuid, uuid) == 0)
			return true;
	return false;
}

static cgn_rc call_judge(const struct nvml_lib *l, const char *what, int result, struct cgn_err *err)
{
	if (result == NVML_LIB_SUCCESS)
		return CGN_OK;
	if (result == NVML_LIB_NO_PERMISSION)
		return CGN_FAIL(err, FORBIDDEN, "%s: %s", what, nvml_lib_error(l, result));
	return CGN_FAIL(err, UNAVAILABLE, "%s: %s", what, nvml_lib_error(l, result));
}

CGN_RC nvml_clocks_lock(struct nvml_clocks *c, const struct nvml_clock_gpu *gpu, uint32_t low_mhz,
	uint32_t high_mhz, struct cgn_err *err)
{
	nvml_device d = NULL;
	CGN_TRY(call_judge(&c->lib, "nvmlDeviceGetHandleByIndex", c->lib.device(gpu->index, &d), err));
	return call_judge(&c->lib, "nvmlDeviceSetGpuLockedClocks", c->lib.lock(d, low_mhz, high_mhz), err);
}

CGN_RC nvml_clocks_reset(struct nvml_clocks *c, const struct nvml_clock_gpu *gpu, struct cgn_err *err)
{
	nvml_device d = NULL;
	CGN_TRY(call_judge(&c->lib, "nvmlDeviceGetHandleByIndex", c->lib.device(gpu->index, &d), err));
	return call_judge(&c->lib, "nvmlDeviceResetGpuLockedClocks", c->lib.unlock(d), err);
}
