/* SPDX-License-Identifier: Apache-2.0 */
/* place: the lock of the cluster's files in cluster.state_dir. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "io/os/disk/disk.h"
#include "joint/cluster/state/state_priv.h"

CGN_RC state_place_open(struct state_place *p, const struct config *cfg, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	struct cgn_err why;
	cgn_buf_fmt(&path, "%s/%s.lock", cfg->cluster.state_dir, cfg->cluster.name);
	*p = (struct state_place){.fd = -1, .path = cgn_str_dupz(cgn_buf_view(&path))};
	if (path.bad || p->path == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the lock of the state");
	(void)!cgn_ok(disk_mkdirs(cfg->cluster.state_dir, 0755, &why)); /* The writers log why it failed. */
	return CGN_OK;
}

/* Note the process in the file, for messages of others. */
static void pid_write(int fd)
{
	char text[24];
	int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
	if (ftruncate(fd, 0) == 0)
		(void)!pwrite(fd, text, (size_t)n, 0);
}

static CGN_RC place_taken(const struct state_place *p, int fd, struct cgn_err *err)
{
	char text[24] = "";
	ssize_t n = pread(fd, text, sizeof text - 1, 0);
	long pid = n > 0 ? strtol(text, NULL, 10) : 0;
	return CGN_FAIL(err, STORAGE,
		"%s is locked by process %ld, another router of this cluster: give each router a cluster.state_dir of its own",
		p->path, pid);
}

bool state_place_hold(struct state_place *p, struct cgn_err *err)
{
	if (p->fd >= 0)
		return true;
	int fd = open(p->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640);
	if (fd < 0)
		return true;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
		pid_write(fd);
		p->fd = fd;
		return true;
	}
	bool lockless = errno != EWOULDBLOCK || cgn_ok(place_taken(p, fd, err));
	(void)close(fd);
	return lockless;
}

int state_place_share(const struct state_place *p)
{
	return p->fd >= 0 ? fcntl(p->fd, F_DUPFD_CLOEXEC, 0) : -1;
}

void state_place_drop(int fd)
{
	if (fd >= 0)
		(void)close(fd);
}

void state_place_close(struct state_place *p)
{
	state_place_drop(p->fd);
	free(p->path);
	*p = (struct state_place){.fd = -1};
}
