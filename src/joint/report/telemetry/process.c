/* SPDX-License-Identifier: Apache-2.0 */
/* telemetry: process_* as Prometheus' client libraries name them, read from /proc. What can't be read is left
 * out. */
#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#include <sys/resource.h>

#include "joint/report/telemetry/telemetry_priv.h"

static void metric_put(struct cgn_buf *out, const char *name, const char *type, const char *help, double v)
{
	cgn_buf_fmt(out, "# HELP %s %s\n# TYPE %s %s\n%s %.15g\n", name, help, name, type, name, v);
}

static bool read_text(const char *path, char *dst, size_t cap)
{
	FILE *f = fopen(path, "re");
	if (f == NULL)
		return false;
	size_t n = fread(dst, 1, cap - 1, f);
	fclose(f);
	dst[n] = '\0';
	return n > 0;
}

static double boot_time(void)
{
	static const char label[] = "btime ";
	double at = 0;
	FILE *f = fopen("/proc/stat", "re");
	if (f == NULL)
		return at;
	/* the interrupts' line is longer: fgets gives it in pieces, none of which begins with btime */
	char line[256];
	while (at <= 0 && fgets(line, sizeof line, f) != NULL)
		if (strncmp(line, label, sizeof label - 1) == 0)
			at = strtod(line + sizeof label - 1, NULL);
	fclose(f);
	return at;
}

static void put_stat(struct cgn_buf *out)
{
	char text[2048];
	if (!read_text("/proc/self/stat", text, sizeof text))
		return;
	const char *p = strrchr(text, ')'); /* the program's name may hold spaces and parentheses */
	unsigned long long utime, stime, start, vsize;
	long rss;
	if (p == NULL ||
		sscanf(p + 1,
			" %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %llu %llu %ld",
			&utime, &stime, &start, &vsize, &rss) != 5)
		return;
	double tick = (double)sysconf(_SC_CLK_TCK);
	metric_put(out, "process_cpu_seconds_total", "counter", "User and system CPU time of the process",
		(double)(utime + stime) / tick);
	metric_put(out, "process_resident_memory_bytes", "gauge", "Resident memory",
		(double)rss * (double)sysconf(_SC_PAGESIZE));
	metric_put(out, "process_virtual_memory_bytes", "gauge", "Virtual memory", (double)vsize);
	metric_put(out, "process_start_time_seconds", "gauge", "Start of the process, Unix time",
		boot_time() + (double)start / tick);
}

static void put_fds(struct cgn_buf *out)
{
	DIR *d = opendir("/proc/self/fd");
	if (d == NULL)
		return;
	unsigned n = 0;
	for (struct dirent *e = readdir(d); e != NULL; e = readdir(d))
		n += e->d_name[0] != '.';
	closedir(d);
	metric_put(out, "process_open_fds", "gauge", "Open file descriptors",
		n - 1); /* without the directory's own */
}

void process_text(struct cgn_buf *out)
{
	put_stat(out);
	put_fds(out);
	struct rlimit lim;
	if (getrlimit(RLIMIT_NOFILE, &lim) == 0)
		metric_put(out, "process_max_fds", "gauge", "Limit of open file descriptors",
			(double)lim.rlim_cur);
}
