/* SPDX-License-Identifier: Apache-2.0 */
/* The library's functions, and the readings of one GPU. */
#include <dlfcn.h>
#include <string.h>

#include "base/core/str.h"
#include "io/os/nvml/nvml_priv.h"

/* ISO C does not convert the pointers of dlsym to functions; POSIX says that the bytes are the same. */
static bool symbol_find(void *handle, const char *name, const char *older, void *to)
{
	const void *p = dlsym(handle, name);
	if (p == NULL && older != NULL)
		p = dlsym(handle, older);
	memcpy(to, &p, sizeof p);
	return p != NULL;
}

CGN_RC nvml_lib_open(const char *path, struct nvml_lib *out, struct cgn_err *err)
{
	struct nvml_lib l = {.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
	if (l.handle == NULL)
		return CGN_FAIL(err, NOT_FOUND, "%s", dlerror());
	const struct {
		const char *name, *older;
		void *to;
		bool needed;
	} rows[] = {
		{"nvmlInit_v2", "nvmlInit", &l.init, true},
		{"nvmlShutdown", NULL, &l.shutdown, false},
		{"nvmlErrorString", NULL, &l.error_text, false},
		{"nvmlSystemGetDriverVersion", NULL, &l.driver, false},
		{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount", &l.count, true},
		{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex", &l.device, true},
		{"nvmlDeviceGetUUID", NULL, &l.uuid, false},
		{"nvmlDeviceGetName", NULL, &l.name, false},
		{"nvmlDeviceGetMemoryInfo", NULL, &l.memory, false},
		{"nvmlDeviceGetUtilizationRates", NULL, &l.use, false},
		{"nvmlDeviceGetPowerUsage", NULL, &l.power, false},
		{"nvmlDeviceGetEnforcedPowerLimit", NULL, &l.power_limit, false},
		{"nvmlDeviceGetTotalEnergyConsumption", NULL, &l.energy, false},
		{"nvmlDeviceGetTemperature", NULL, &l.temperature, false},
		{"nvmlDeviceGetClockInfo", NULL, &l.clock, false},
		{"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons",
			&l.slowed, false},
		{"nvmlDeviceGetSupportedMemoryClocks", NULL, &l.memory_clocks, false},
		{"nvmlDeviceGetSupportedGraphicsClocks", NULL, &l.sm_clocks, false},
		{"nvmlDeviceSetGpuLockedClocks", NULL, &l.lock, false},
		{"nvmlDeviceResetGpuLockedClocks", NULL, &l.unlock, false},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		if (symbol_find(l.handle, rows[i].name, rows[i].older, rows[i].to) || !rows[i].needed)
			continue;
		cgn_rc rc = CGN_FAIL(err, UNSUPPORTED, "%s has no %s", path, rows[i].name);
		(void)dlclose(l.handle);
		return rc;
	}
	*out = l;
	return CGN_OK;
}

void nvml_lib_close(struct nvml_lib *lib)
{
	if (lib->shutdown != NULL)
		(void)lib->shutdown();
	(void)dlclose(lib->handle);
	*lib = (struct nvml_lib){.handle = NULL};
}

const char *nvml_lib_error(const struct nvml_lib *lib, int result)
{
	const char *text = lib->error_text != NULL ? lib->error_text(result) : NULL;
	return text != NULL ? text : "an error without a text";
}

static bool is_uuid_of(struct cgn_str part, const char *uuid)
{
	return part.n > 4 && part.n <= strlen(uuid) && memcmp(part.p, uuid, part.n) == 0;
}

bool nvml_lib_listed(const char *list, uint32_t index, const char *uuid)
{
	struct cgn_str rest = cgn_str_of(list);
	uint64_t number = 0;
	if (list == NULL)
		return true;
	while (rest.p != NULL) {
		struct cgn_str part = cgn_str_trim(cgn_str_split(&rest, ','));
		if ((cgn_str_u64(part, &number) && number == index) || is_uuid_of(part, uuid))
			return true;
	}
	return false;
}

static void numbers_read(const struct nvml_lib *l, nvml_device d, struct nvml_gpu *out)
{
	unsigned long long wide = 0;
	unsigned v = 0;
	if (l->power != NULL && l->power(d, &v) == NVML_LIB_SUCCESS) {
		out->power_mw = v;
		out->have |= NVML_POWER;
	}
	if (l->power_limit != NULL && l->power_limit(d, &v) == NVML_LIB_SUCCESS) {
		out->power_limit_mw = v;
		out->have |= NVML_POWER_LIMIT;
	}
	if (l->energy != NULL && l->energy(d, &wide) == NVML_LIB_SUCCESS) {
		out->energy_mj = wide;
		out->have |= NVML_ENERGY;
	}
	if (l->temperature != NULL && l->temperature(d, NVML_LIB_TEMPERATURE_GPU, &v) == NVML_LIB_SUCCESS) {
		out->temperature_c = v;
		out->have |= NVML_TEMPERATURE;
	}
	if (l->clock != NULL && l->clock(d, NVML_LIB_CLOCK_SM, &v) == NVML_LIB_SUCCESS) {
		out->sm_mhz = v;
		out->have |= NVML_SM_CLOCK;
	}
	if (l->clock != NULL && l->clock(d, NVML_LIB_CLOCK_MEM, &v) == NVML_LIB_SUCCESS) {
		out->memory_mhz = v;
		out->have |= NVML_MEMORY_CLOCK;
	}
	if (l->slowed != NULL && l->slowed(d, &wide) == NVML_LIB_SUCCESS) {
		out->slowed = wide;
		out->have |= NVML_SLOWED;
	}
}

bool nvml_lib_read(const struct nvml_lib *lib, unsigned index, struct nvml_gpu *out, int *result)
{
	struct nvml_lib_memory memory = {0};
	struct nvml_lib_use use = {0};
	nvml_device d = NULL;
	*out = (struct nvml_gpu){.index = index};
	*result = lib->device(index, &d);
	if (*result != NVML_LIB_SUCCESS)
		return false;
	if (lib->uuid == NULL || lib->uuid(d, out->uuid, sizeof out->uuid) != NVML_LIB_SUCCESS)
		out->uuid[0] = '\0';
	if (lib->name == NULL || lib->name(d, out->name, sizeof out->name) != NVML_LIB_SUCCESS)
		out->name[0] = '\0';
	out->uuid[sizeof out->uuid - 1] = out->name[sizeof out->name - 1] = '\0';
	int got = lib->memory != NULL ? lib->memory(d, &memory) : NVML_LIB_NOT_SUPPORTED;
	if (got == NVML_LIB_SUCCESS) {
		out->memory_used = memory.used;
		out->memory_total = memory.total;
		out->have |= NVML_MEMORY;
	}
	if (lib->use != NULL && lib->use(d, &use) == NVML_LIB_SUCCESS) {
		out->sm_percent = use.gpu <= 100 ? use.gpu : 100;
		out->memory_percent = use.memory <= 100 ? use.memory : 100;
		out->have |= NVML_USE;
	}
	numbers_read(lib, d, out);
	*result = got; /* A lost GPU has a handle and no readings. */
	return out->have != 0;
}
