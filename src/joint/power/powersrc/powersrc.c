/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/power/powersrc/powersrc.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/core/str.h"

/* Read the first line of a small file as a number. */
static bool read_u64(const char *path, uint64_t *out)
{
	char text[64];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t n = read(fd, text, sizeof text);
	(void)close(fd);
	if (n <= 0)
		return false;
	struct cgn_str rest = {text, (size_t)n};
	return cgn_str_u64(cgn_str_split(&rest, '\n'), out);
}

static bool is_package(const char *dir)
{
	char path[300], name[16];
	(void)snprintf(path, sizeof path, "%s/name", dir);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t n = read(fd, name, sizeof name);
	(void)close(fd);
	return n > 0 && cgn_str_starts((struct cgn_str){name, (size_t)n}, "package-");
}

static void zone_add(struct powersrc *p, const char *dir)
{
	char path[300];
	struct powersrc_zone z = {.limit_uw = 0};
	uint64_t range_uj = 0, uj = 0;
	(void)snprintf(path, sizeof path, "%s/constraint_0_power_limit_uw", dir);
	if (!read_u64(path, &z.limit_uw)) /* AMD's packages have none. */
		z.limit_uw = 0;
	(void)snprintf(path, sizeof path, "%s/max_energy_range_uj", dir);
	(void)read_u64(path, &range_uj);
	if (snprintf(z.energy_path, sizeof z.energy_path, "%s/energy_uj", dir) >= (int)sizeof z.energy_path)
		return;
	power_counter_init(&z.counter, range_uj, POWERSRC_MOST_WATTS);
	if (read_u64(z.energy_path, &uj))
		p->zone[p->n++] = z;
}

void powersrc_init(struct powersrc *p, const char *root)
{
	*p = (struct powersrc){.headroom = 1};
	DIR *d = opendir(root);
	if (d == NULL)
		return;
	for (const struct dirent *e; p->n < POWERSRC_MAX_ZONES && (e = readdir(d)) != NULL;) {
		char dir[256];
		int n = snprintf(dir, sizeof dir, "%s/%s", root, e->d_name);
		if (e->d_name[0] != '.' && n > 0 && (size_t)n < sizeof dir && is_package(dir))
			zone_add(p, dir);
	}
	(void)closedir(d);
}

/* Return the joules since the last reading: across a wrap, and none for a counter that was reset. */
static double zone_used(struct powersrc_zone *z, cgn_nsec now)
{
	double before = z->counter.joules, watts = 0;
	uint64_t uj = 0;
	if (read_u64(z->energy_path, &uj))
		(void)power_counter_step(&z->counter, uj, now, &watts);
	return z->counter.joules - before;
}

double powersrc_step(struct powersrc *p, cgn_nsec now)
{
	double limited_j = 0, limit_w = powersrc_limit_watts(p);
	if (p->n == 0 || now <= p->last)
		return p->headroom;
	for (size_t i = 0; i < p->n; i++) {
		double used_j = zone_used(&p->zone[i], now);
		p->joules += used_j;
		limited_j += p->zone[i].limit_uw > 0 ? used_j : 0;
	}
	cgn_nsec before = p->last;
	p->last = now;
	if (before == 0 ||
		!(limit_w > 0)) /* The energy before the first call was used over an unknown time */
		return p->headroom;
	double watts = limited_j / ((double)cgn_since(now, before) / (double)CGN_SEC);
	double left = 1 - watts / limit_w;
	p->headroom = left < 0 ? 0 : left > 1 ? 1 : left;
	return p->headroom;
}

double powersrc_limit_watts(const struct powersrc *p)
{
	double sum = 0;
	for (size_t i = 0; i < p->n; i++)
		sum += (double)p->zone[i].limit_uw * 1e-6;
	return sum;
}

double powersrc_most_watts(const struct powersrc *p)
{
	double sum = 0;
	for (size_t i = 0; i < p->n; i++)
		sum += p->zone[i].limit_uw > 0 ? (double)p->zone[i].limit_uw * 1e-6 : POWERSRC_MOST_WATTS;
	return sum;
}
