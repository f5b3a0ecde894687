/* SPDX-License-Identifier: Apache-2.0 */
/* host: RAPL and hwmon. */
#include "joint/power/powersrc/host.h"

#include "joint/power/powersrc/powersrc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* ---- files ---- */

/* Read the first line of DIR/FILE. False with errno: it cannot be read. */
static bool line_read(const char *dir, const char *file, char *out, size_t cap)
{
	char path[400];
	(void)snprintf(path, sizeof path, "%s%s%s", dir, file[0] != '\0' ? "/" : "", file);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, out, cap - 1) : -1;
	int why = errno;
	if (fd >= 0)
		(void)close(fd);
	errno = why;
	if (n < 0)
		return false;
	out[n] = '\0';
	out[strcspn(out, "\n")] = '\0';
	out[cgn_utf8_prefix(out, strlen(out))] = '\0';
	return true;
}

static bool file_is_there(const char *dir, const char *file)
{
	char path[400];
	int n = snprintf(path, sizeof path, "%s/%s", dir, file);
	return n < (int)sizeof path && access(path, F_OK) == 0;
}

static void sensor_add(struct powersrc_host *h, const struct powersrc_sensor *s, const char *dir,
	const char *file)
{
	if (h->n == POWERSRC_MAX_SENSORS || !file_is_there(dir, file))
		return;
	struct powersrc_sensor *to = &h->sensor[h->n];
	*to = *s;
	if (snprintf(to->path, sizeof to->path, "%s/%s", dir, file) < (int)sizeof to->path)
		h->n++;
}

/* Call |fn| for each folder in |root|, links included. */
static void folders_each(struct powersrc_host *h, const char *root,
	void (*fn)(struct powersrc_host *h, const char *dir))
{
	DIR *d = opendir(root);
	if (d == NULL)
		return;
	for (const struct dirent *e; (e = readdir(d)) != NULL;) {
		char dir[256];
		int n = snprintf(dir, sizeof dir, "%s/%s", root, e->d_name);
		if (e->d_name[0] != '.' && n < (int)sizeof dir)
			fn(h, dir);
	}
	(void)closedir(d);
}

/* ---- RAPL ---- */

/* The package that a zone "…/intel-rapl:1:0" lies in: "1". */
static void zone_part(const char *dir, char *out, size_t cap)
{
	const char *at = strchr(strrchr(dir, '/'), ':');
	size_t n = at != NULL ? strcspn(at + 1, ":") : 0;
	(void)cgn_str_copyz(out, cap, (struct cgn_str){at != NULL ? at + 1 : "", n});
}

/* Packages and their memory. Zones of cores are parts of a package, and psys overlaps with it. */
static void zone_find(struct powersrc_host *h, const char *dir)
{
	struct powersrc_sensor s = {.source = POWER_FROM_RAPL, .is_counter = true};
	char name[32], range[32];
	uint64_t range_uj = 0;
	if (!line_read(dir, "name", name, sizeof name))
		return;
	if (strncmp(name, "package-", 8) == 0)
		s.component = POWER_CPU;
	else if (strcmp(name, "dram") == 0)
		s.component = POWER_DRAM;
	else
		return;
	if (line_read(dir, "max_energy_range_uj", range, sizeof range))
		(void)cgn_str_u64(cgn_str_of(range), &range_uj);
	power_counter_init(&s.counter, range_uj, POWERSRC_MOST_WATTS);
	zone_part(dir, s.part, sizeof s.part);
	/* The same zones are there twice where MMIO is an interface to them beside MSR. */
	if (strstr(dir, "-mmio") == NULL)
		sensor_add(h, &s, dir, "energy_uj");
}

/* ---- hwmon ---- */

/* Tell a sensor's quantity by the names of its driver and its label; a guess that would be summed up twice is
 * given a kind. */
static void hwmon_judge(struct powersrc_sensor *s, const char *driver, const char *label)
{
	s->component = POWER_OTHER;
	if (strcmp(driver, "power_meter") == 0) /* ACPI's meter of the machine */
		s->component = POWER_NODE;
	else if (strcmp(driver, "amdgpu") == 0)
		s->component = POWER_GPU;
	else if (strncmp(label, "pin", 3) == 0 || strncmp(label, "pout", 4) == 0)
		s->component = POWER_PSU;
	else if (strcmp(driver, "amd_energy") == 0 && strncmp(label, "Esocket", 7) == 0)
		s->component = POWER_CPU;
	if (strncmp(label, "pout", 4) == 0)
		(void)snprintf(s->kind, sizeof s->kind, "output");
	else if (s->component == POWER_OTHER || strncmp(label, "Ecore", 5) == 0)
		(void)snprintf(s->kind, sizeof s->kind, "sensor");
}

static void channel_find(struct powersrc_host *h, const char *dir, const char *driver, const char *type,
	unsigned i)
{
	struct powersrc_sensor s = {.source = POWER_FROM_HWMON, .is_counter = strcmp(type, "energy") == 0};
	char file[40], label[POWER_NAME_BYTES] = "";
	const char *chip = strrchr(dir, '/') + 1;
	(void)snprintf(file, sizeof file, "%s%u_label", type, i);
	(void)line_read(dir, file, label, sizeof label);
	hwmon_judge(&s, driver, label);
	int n = snprintf(s.part, sizeof s.part, "%s/%s%u", chip, type, i);
	if (n >= (int)sizeof s.part)
		return;
	power_counter_init(&s.counter, 0, POWERSRC_MOST_WATTS);
	(void)snprintf(file, sizeof file, "%s%u_average", type, i);
	if (!file_is_there(dir, file))
		(void)snprintf(file, sizeof file, "%s%u_input", type, i);
	sensor_add(h, &s, dir, file);
}

static void chip_find(struct powersrc_host *h, const char *dir)
{
	char driver[32];
	if (!line_read(dir, "name", driver, sizeof driver))
		return;
	for (unsigned i = 1; i <= 8; i++) {
		channel_find(h, dir, driver, "power", i);
		channel_find(h, dir, driver, "energy", i);
	}
}

void powersrc_host_init(struct powersrc_host *h, const char *powercap_root, const char *hwmon_root)
{
	h->n = 0;
	folders_each(h, powercap_root, zone_find);
	folders_each(h, hwmon_root, chip_find);
}

/* ---- readings ---- */

static void failure_tell(struct power_reading *r, const char *path, int why)
{
	r->state = POWER_FAILING;
	r->quantity = POWER_WATTS;
	/* The kernel has kept RAPL from other users since CVE-2020-8694. */
	(void)snprintf(r->why, sizeof r->why, "%.60s: %.30s", path,
		why == 0                ? "no number"
			: why == EACCES ? "only root may read it"
					: strerror(why));
}

static size_t sensor_read(struct powersrc_sensor *s, const struct power_reading *like,
	struct power_reading *out)
{
	char text[40];
	uint64_t v = 0;
	double watts = 0;
	out[0] = *like;
	errno = 0;
	bool is_read = line_read(s->path, "", text, sizeof text);
	if (!is_read || !cgn_str_u64(cgn_str_of(text), &v)) {
		failure_tell(&out[0], s->path, is_read ? 0 : errno);
		return 1;
	}
	if (!s->is_counter) {
		out[0].quantity = POWER_WATTS;
		out[0].value = (double)v / 1e6;
		return 1;
	}
	bool has_watts = power_counter_step(&s->counter, v, like->time, &watts);
	out[0].quantity = POWER_JOULES;
	out[0].value = s->counter.joules;
	if (!has_watts)
		return 1;
	out[1] = *like;
	out[1].quantity = POWER_WATTS;
	out[1].value = watts;
	return 2;
}

size_t powersrc_host_read(struct powersrc_host *h, const char *node, cgn_nsec now, cgn_nsec max_age,
	struct power_reading *out)
{
	size_t n = 0;
	for (size_t i = 0; i < h->n; i++) {
		struct powersrc_sensor *s = &h->sensor[i];
		struct power_reading like = {.component = s->component,
			.source = s->source,
			.time = now,
			.max_age = max_age};
		(void)cgn_str_copyz(like.node, sizeof like.node, cgn_str_of(node));
		memcpy(like.part, s->part, sizeof like.part);
		memcpy(like.kind, s->kind, sizeof like.kind);
		n += sensor_read(s, &like, out + n);
	}
	return n;
}
