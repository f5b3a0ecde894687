/* SPDX-License-Identifier: Apache-2.0 */
/* limits: the kernel's limits for the programs, and the GPUs' library. */
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ctl/doctor/doctor.h"
#include "io/net/net/owner.h"
#include "io/os/disk/disk.h"
#include "io/os/memlimit/memlimit.h"

#define FILES_LEAST ((uint64_t)4096)
#define FILES_GOOD  ((uint64_t)65536)
#define BACKLOG     ((uint64_t)4096)
#define UDP_BUFFER  ((uint64_t)4 << 20) /* As io/net/quic asks for. */
#define GIB         ((double)(1 << 30))

/* Read the soft limit of open files of a process; false: not visible. */
static bool files_of_process(const char *pid, uint64_t *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	char path[64];
	(void)snprintf(path, sizeof path, "/proc/%.20s/limits", pid);
	if (!cgn_ok(disk_read_file(path, 65536, &text, NULL)))
		return false;
	const char *line = strstr(cgn_buf_z(&text), "Max open files");
	if (line == NULL)
		return false;
	*out = strtoull(line + strlen("Max open files"), NULL, 10);
	return *out > 0;
}

static size_t files_look(struct doctor *d, const struct doctor_program *p)
{
	char who[100], pid[24];
	uint64_t files;
	const char *port = p->admin != NULL ? strrchr(p->admin, ':') : NULL;
	if (!p->answers || port == NULL ||
		net_port_owner((unsigned)strtoul(port + 1, NULL, 10), who, sizeof who) != NET_OWNER_OTHER ||
		sscanf(who, "pid %20s", pid) != 1 || !files_of_process(pid, &files))
		return 0;
	if (files >= FILES_GOOD)
		return 1;
	doctor_find(d, files < FILES_LEAST ? DOCTOR_PROBLEM : DOCTOR_WARNING,
		"%s may have %llu files and connections open, each client takes one", p->name,
		(unsigned long long)files);
	doctor_do(d, "LimitNOFILE=1048576 in the unit (systemctl edit %s), or ulimit -n 1048576", p->name);
	return 1;
}

void check_descriptors(struct doctor *d)
{
	size_t seen = 0;
	struct rlimit own;
	for (size_t i = 0; i < DOCTOR_PROGRAMS; i++)
		if (d->programs[i].meant)
			seen += files_look(d, &d->programs[i]);
	/* Programs raise their limit to the hard one. Units have a limit of their own. */
	if (seen == 0 && !d->units && getrlimit(RLIMIT_NOFILE, &own) == 0 && own.rlim_max < FILES_GOOD) {
		doctor_find(d, own.rlim_max < FILES_LEAST ? DOCTOR_PROBLEM : DOCTOR_WARNING,
			"programs started here may have %llu files and connections open",
			(unsigned long long)own.rlim_max);
		doctor_do(d, "ulimit -Hn 1048576 as root, or nofile in /etc/security/limits.conf");
	}
	if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "enough for many connections");
}

static void sysctl_least(struct doctor *d, const char *name, const char *path, uint64_t least,
	const char *what)
{
	uint64_t value;
	if (!doctor_number(path, &value) || value >= least)
		return;
	doctor_find(d, DOCTOR_WARNING, "%s is %llu: %s", name, (unsigned long long)value, what);
	doctor_do(d, "sysctl -w %s=%llu, and the same line in /etc/sysctl.d/cognitora.conf", name,
		(unsigned long long)least);
}

void check_backlog(struct doctor *d)
{
	if (!d->programs[ROUTER].meant) {
		doctor_find(d, DOCTOR_SKIPPED, "no router belongs to this machine");
		return;
	}
	sysctl_least(d, "net.core.somaxconn", "/proc/sys/net/core/somaxconn", BACKLOG,
		"clients are refused in a burst, and while the router restarts");
	if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "net.core.somaxconn is at least %llu", (unsigned long long)BACKLOG);
}

void check_udp_buffers(struct doctor *d)
{
	const struct config *c = d->cfg;
	if (!d->programs[KVCACHED].meant || c->kv.transport != KV_TRANSPORT_QUIC ||
		c->security.cert_file == NULL) {
		doctor_find(d, DOCTOR_SKIPPED, "no block store here has peers by QUIC");
		return;
	}
	sysctl_least(d, "net.core.rmem_max", "/proc/sys/net/core/rmem_max", UDP_BUFFER,
		"packets of other stores are lost under load");
	sysctl_least(d, "net.core.wmem_max", "/proc/sys/net/core/wmem_max", UDP_BUFFER,
		"blocks are sent to other stores more slowly");
	if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "sockets may have buffers of %llu bytes",
			(unsigned long long)UDP_BUFFER);
}

void check_memory(struct doctor *d)
{
	const struct config *c = d->cfg;
	const uint64_t wants[DOCTOR_PROGRAMS] = {c->router.max_inflight_body + c->router.index_size +
			c->router.record_size + c->router.prompt_cache,
		c->agent.max_inflight_body + c->agent.memory, c->kv.ram + c->kv.peer_index,
		c->metrics.scrape_memory};
	struct memlimit may;
	uint64_t sum = 0;
	memlimit_find("", &may);
	for (size_t i = 0; i < DOCTOR_PROGRAMS; i++)
		sum += d->programs[i].meant ? wants[i] : 0;
	if (sum > may.bytes) {
		doctor_find(d, DOCTOR_PROBLEM,
			"the settings allow the programs %.1f GiB, and %s states %.1f GiB", (double)sum / GIB,
			may.who, (double)may.bytes / GIB);
		doctor_do(d,
			d->programs[KVCACHED].meant
				? "lower kv.ram, or raise the limit (MemoryMax= of the unit)"
				: "lower max_inflight_body of router and agent, or raise the limit");
	} else
		doctor_find(d, DOCTOR_OK, "the settings allow the programs %.1f of %.1f GiB",
			(double)sum / GIB, (double)may.bytes / GIB);
}

void check_hugepages(struct doctor *d)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	uint64_t overcommit = 0;
	if (!d->programs[KVCACHED].meant) {
		doctor_find(d, DOCTOR_SKIPPED, "no block store belongs to this machine");
		return;
	}
	if (cgn_ok(disk_read_file("/sys/kernel/mm/transparent_hugepage/enabled", 4096, &text, NULL)) &&
		strstr(cgn_buf_z(&text), "[never]") != NULL) {
		doctor_find(d, DOCTOR_WARNING,
			"transparent huge pages are off: the store's copies are slower");
		doctor_do(d, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
	}
	if (doctor_number("/proc/sys/vm/overcommit_memory", &overcommit) && overcommit == 2) {
		doctor_find(d, DOCTOR_WARNING,
			"vm.overcommit_memory is 2: the store reserves kv.ram at its start, and engines may get none");
		doctor_do(d, "sysctl -w vm.overcommit_memory=0");
	}
	if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "huge pages are allowed");
}

/* Count the device files of NVIDIA's GPUs. */
static size_t gpus_count(void)
{
	size_t n = 0;
	DIR *dir = opendir("/dev");
	for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
		n += strncmp(e->d_name, "nvidia", 6) == 0 && isdigit((unsigned char)e->d_name[6]);
	if (dir != NULL)
		(void)closedir(dir);
	return n;
}

void check_gpu(struct doctor *d)
{
	size_t n = gpus_count();
	const char *name = d->cfg->agent.nvml;
	if (n == 0 || !d->programs[AGENT].meant || name[0] == '\0') {
		doctor_find(d, DOCTOR_SKIPPED, "no NVIDIA GPU and agent that reads it");
		return;
	}
	void *library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
	if (library != NULL) {
		(void)dlclose(library);
		doctor_find(d, DOCTOR_OK, "%zu GPUs, and %s is there", n, name);
		return;
	}
	doctor_find(d, DOCTOR_PROBLEM, "there are %zu NVIDIA GPUs, and the agent cannot read them: %s", n,
		dlerror());
	doctor_do(d, "install the driver's NVML (libnvidia-ml1), or name the library with agent.nvml");
}
