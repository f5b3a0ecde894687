/* SPDX-License-Identifier: Apache-2.0 */
/* nvml, inside: the library's functions, declared here because the header comes with the driver's packages only. */
#pragma once
#include "io/os/nvml/nvml.h"

typedef struct nvmlDevice_st *nvml_device; /* Opaque */
struct nvml_lib_memory {
	unsigned long long total, free, used;
};
struct nvml_lib_use {
	unsigned gpu, memory;
};
enum { NVML_LIB_SUCCESS = 0, NVML_LIB_NOT_SUPPORTED = 3, NVML_LIB_NO_PERMISSION = 4 };
enum { NVML_LIB_TEMPERATURE_GPU = 0 };
enum { NVML_LIB_CLOCK_SM = 1, NVML_LIB_CLOCK_MEM = 2 };

/* Each returns an nvmlReturn_t, but error_text. NULL: the library has no such function. */
struct nvml_lib {
	void *handle;
	int (*init)(void);
	int (*shutdown)(void);
	const char *(*error_text)(int);
	int (*driver)(char *, unsigned);
	int (*count)(unsigned *);
	int (*device)(unsigned, nvml_device *);
	int (*uuid)(nvml_device, char *, unsigned);
	int (*name)(nvml_device, char *, unsigned);
	int (*memory)(nvml_device, struct nvml_lib_memory *);
	int (*use)(nvml_device, struct nvml_lib_use *);
	int (*power)(nvml_device, unsigned *);
	int (*power_limit)(nvml_device, unsigned *);
	int (*energy)(nvml_device, unsigned long long *);
	int (*temperature)(nvml_device, int, unsigned *);
	int (*clock)(nvml_device, int, unsigned *);
	int (*slowed)(nvml_device, unsigned long long *);
	int (*memory_clocks)(nvml_device, unsigned *, unsigned *);
	int (*sm_clocks)(nvml_device, unsigned, unsigned *, unsigned *);
	int (*lock)(nvml_device, unsigned, unsigned);
	int (*unlock)(nvml_device);
};
/* Load the library and find its functions. CGN_NOT_FOUND: there is none. CGN_UNSUPPORTED: it lacks a function without
 * which nothing can be read. */
CGN_RC nvml_lib_open(const char *path, struct nvml_lib *out, struct cgn_err *err);
void nvml_lib_close(struct nvml_lib *lib);
/* Return the library's words for a result. */
const char *nvml_lib_error(const struct nvml_lib *lib, int result);
/* Return true when |list|, as struct nvml_cfg has it, names the GPU. */
bool nvml_lib_listed(const char *list, uint32_t index, const char *uuid);
/* Read one GPU; a reading that fails is left out. False: the GPU cannot be read at all; |*result| says why. */
bool nvml_lib_read(const struct nvml_lib *lib, unsigned index, struct nvml_gpu *out, int *result);
