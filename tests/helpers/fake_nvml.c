/* SPDX-License-Identifier: Apache-2.0 */
/* fake_nvml: a libnvidia-ml that says what a file says, for tests. $FAKE_NVML names the file; it is read again with each
 * count of GPUs. A line is one of
 *   count N           GPUs
 *   KEY GPU VALUE     a reading of a GPU: memory_used, memory_total (bytes), sm, power, power_limit (mW), energy (mJ),
 *                     temperature, clock, slowed
 *   fail NAME RESULT  the function nvmlNAME returns RESULT
 *   fail_at NAME N RESULT  the Nth call of nvmlNAME in a process returns RESULT
 *   hang NAME         the function nvmlNAME does not return
 * Each limit of clocks that is set or lifted appends a line to $FAKE_NVML.calls: "lock GPU LOW HIGH RESULT", "reset GPU RESULT".
 * With FEW defined, most functions are missing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPUS  8
#define LINES 64

static struct {
	char word[40], rest[80];
} line[LINES];
static unsigned n_lines;
static long numbers[GPUS]; /* A device is a pointer into this. */

static void file_read(void)
{
	const char *path = getenv("FAKE_NVML");
	FILE *f = path != NULL ? fopen(path, "re") : NULL;
	n_lines = 0;
	if (f == NULL)
		return;
	while (n_lines < LINES && fscanf(f, "%39s %79[^\n]", line[n_lines].word, line[n_lines].rest) == 2)
		n_lines++;
	(void)fclose(f);
}

/* Count a call of a function and return its number. */
static unsigned call_count(const char *name)
{
	static struct {
		char name[60];
		unsigned n;
	} seen[40];
	unsigned i = 0;
	while (i < 39 && seen[i].name[0] != '\0' && strcmp(seen[i].name, name) != 0)
		i++;
	(void)snprintf(seen[i].name, sizeof seen[i].name, "%s", name);
	return ++seen[i].n;
}

/* Return the result that the file orders for a function; hang if it says so. */
static int result_of(const char *name)
{
	char which[60];
	unsigned nth = call_count(name), n = 0;
	int result = 0;
	for (unsigned i = 0; i < n_lines; i++) {
		if (strcmp(line[i].word, "hang") == 0 && strcmp(line[i].rest, name) == 0)
			for (;;)
				(void)pause();
		if (strcmp(line[i].word, "fail_at") == 0 &&
			sscanf(line[i].rest, "%59s %u %d", which, &n, &result) == 3 &&
			strcmp(which, name) == 0 && n == nth)
			return result;
		if (strcmp(line[i].word, "fail") == 0 &&
			sscanf(line[i].rest, "%59s %d", which, &result) == 2 && strcmp(which, name) == 0)
			return result;
	}
	return 0;
}

#ifndef FEW
static void call_note(const char *text)
{
	char path[300];
	const char *script = getenv("FAKE_NVML");
	(void)snprintf(path, sizeof path, "%s.calls", script != NULL ? script : "/dev/null");
	FILE *f = fopen(path, "ae");
	if (f == NULL)
		return;
	(void)fputs(text, f);
	(void)fclose(f);
}
#endif

static unsigned long long reading_of(const char *key, const long *device)
{
	long gpu = 0;
	unsigned long long v = 0;
	for (unsigned i = 0; i < n_lines; i++)
		if (strcmp(line[i].word, key) == 0 && sscanf(line[i].rest, "%ld %llu", &gpu, &v) == 2 &&
			gpu == device - numbers)
			return v;
	return 0;
}

#ifndef FEW
static int give_number(const char *function, const char *key, const long *device, unsigned *out)
{
	int result = result_of(function);
	*out = result == 0 ? (unsigned)reading_of(key, device) : 0xdeadbeefU;
	return result;
}
#endif

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *out);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, long **out);
int nvmlDeviceGetUUID(const long *d, char *out, unsigned cap);
int nvmlDeviceGetMemoryInfo(const long *d, unsigned long long out[3]);
const char *nvmlErrorString(int result);
int nvmlSystemGetDriverVersion(char *out, unsigned cap);
int nvmlDeviceGetName(const long *d, char *out, unsigned cap);
int nvmlDeviceGetUtilizationRates(const long *d, unsigned out[2]);
int nvmlDeviceGetPowerUsage(const long *d, unsigned *out);
int nvmlDeviceGetEnforcedPowerLimit(const long *d, unsigned *out);
int nvmlDeviceGetTotalEnergyConsumption(const long *d, unsigned long long *out);
int nvmlDeviceGetTemperature(const long *d, int sensor, unsigned *out);
int nvmlDeviceGetClockInfo(const long *d, int type, unsigned *out);
int nvmlDeviceGetCurrentClocksThrottleReasons(const long *d, unsigned long long *out);
int nvmlDeviceGetSupportedMemoryClocks(const long *d, unsigned *n, unsigned *out);
int nvmlDeviceGetSupportedGraphicsClocks(const long *d, unsigned memory, unsigned *n, unsigned *out);
int nvmlDeviceSetGpuLockedClocks(const long *d, unsigned low, unsigned high);
int nvmlDeviceResetGpuLockedClocks(const long *d);

int nvmlInit_v2(void)
{
	file_read();
	return result_of("Init");
}

#ifndef WITHOUT_COUNT
int nvmlDeviceGetCount_v2(unsigned *out)
{
	file_read();
	*out = 0;
	for (unsigned i = 0; i < n_lines; i++)
		if (strcmp(line[i].word, "count") == 0)
			*out = (unsigned)strtoul(line[i].rest, NULL, 10);
	return result_of("DeviceGetCount");
}
#endif

int nvmlDeviceGetHandleByIndex_v2(unsigned i, long **out)
{
	*out = &numbers[i % GPUS];
	return result_of("DeviceGetHandleByIndex");
}

int nvmlDeviceGetUUID(const long *d, char *out, unsigned cap)
{
	(void)snprintf(out, cap, "GPU-%08lx-0000-0000-0000-000000000000",
		(unsigned long)(d - numbers) + 0xa0);
	return result_of("DeviceGetUUID");
}

int nvmlDeviceGetMemoryInfo(const long *d, unsigned long long out[3])
{
	int result = result_of("DeviceGetMemoryInfo");
	out[0] = reading_of("memory_total", d);
	out[2] = reading_of("memory_used", d);
	out[1] = out[0] - out[2];
	return result;
}

#ifndef FEW
int nvmlShutdown(void)
{
	return result_of("Shutdown");
}

const char *nvmlErrorString(int result)
{
	return result == 15   ? "GPU is lost"
		: result == 4 ? "Insufficient Permissions"
		: result == 3 ? "Not Supported"
			      : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *out, unsigned cap)
{
	(void)snprintf(out, cap, "580.65.06");
	return result_of("SystemGetDriverVersion");
}

int nvmlDeviceGetName(const long *d, char *out, unsigned cap)
{
	(void)d;
	(void)snprintf(out, cap, "NVIDIA H100 80GB HBM3");
	return result_of("DeviceGetName");
}

int nvmlDeviceGetUtilizationRates(const long *d, unsigned out[2])
{
	out[1] = 5;
	return give_number("DeviceGetUtilizationRates", "sm", d, &out[0]);
}

int nvmlDeviceGetPowerUsage(const long *d, unsigned *out)
{
	return give_number("DeviceGetPowerUsage", "power", d, out);
}

int nvmlDeviceGetEnforcedPowerLimit(const long *d, unsigned *out)
{
	return give_number("DeviceGetEnforcedPowerLimit", "power_limit", d, out);
}

int nvmlDeviceGetTotalEnergyConsumption(const long *d, unsigned long long *out)
{
	*out = reading_of("energy", d);
	return result_of("DeviceGetTotalEnergyConsumption");
}

int nvmlDeviceGetTemperature(const long *d, int sensor, unsigned *out)
{
	return sensor != 0 ? 2 : give_number("DeviceGetTemperature", "temperature", d, out);
}

int nvmlDeviceGetClockInfo(const long *d, int type, unsigned *out)
{
	int result = give_number("DeviceGetClockInfo", "clock", d, out);
	*out += (unsigned)type; /* SM and memory differ. */
	return result;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(const long *d, unsigned long long *out)
{
	*out = reading_of("slowed", d);
	return result_of("DeviceGetCurrentClocksThrottleReasons");
}

int nvmlDeviceGetSupportedMemoryClocks(const long *d, unsigned *n, unsigned *out)
{
	(void)d;
	if (*n < 2)
		return 7;
	*n = 2;
	out[0] = 1593;
	out[1] = 2619;
	return result_of("DeviceGetSupportedMemoryClocks");
}

/* An H100's at the highest clock of its memory; fewer at the lower one. */
int nvmlDeviceGetSupportedGraphicsClocks(const long *d, unsigned memory, unsigned *n, unsigned *out)
{
	unsigned most = *n;
	(void)d;
	*n = 0;
	for (unsigned mhz = memory == 2619 ? 1980 : 345; mhz >= 210 && *n < most; mhz -= 15)
		out[(*n)++] = mhz;
	return result_of("DeviceGetSupportedGraphicsClocks");
}

int nvmlDeviceSetGpuLockedClocks(const long *d, unsigned low, unsigned high)
{
	char text[80];
	file_read();
	int result = result_of("DeviceSetGpuLockedClocks");
	(void)snprintf(text, sizeof text, "lock %ld %u %u %d\n", (long)(d - numbers), low, high, result);
	call_note(text);
	return result;
}

int nvmlDeviceResetGpuLockedClocks(const long *d)
{
	char text[80];
	file_read();
	int result = result_of("DeviceResetGpuLockedClocks");
	(void)snprintf(text, sizeof text, "reset %ld %d\n", (long)(d - numbers), result);
	call_note(text);
	return result;
}
#endif
