/* SPDX-License-Identifier: Apache-2.0 */
/* place: the lock of the cluster's files in cluster.state_dir. */
#include <stdlib.h>
#include <unistd.h>

#include "io/os/disk/disk.h"
#include "joint/cluster/state/state_priv.h"

void state_place_open(struct state_place *p, const struct config *cfg)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	struct cgn_err why;
	cgn_buf_fmt(&path, "%s/%s.lock", cfg->cluster.state_dir, cfg->cluster.name);
	*p = (struct state_place){.fd = -1, .path = cgn_str_dupz(cgn_buf_view(&path))};
	(void)!cgn_ok(disk_mkdirs(cfg->cluster.state_dir, 0755, &why)); /* The writers log why it failed. */
}

bool state_place_hold(struct state_place *p, struct cgn_err *err)
{
	struct cgn_err why;
	if (p->fd >= 0)
		return true;
	cgn_rc rc = disk_lock_file(p->path, &p->fd, &why);
	if (rc.code != CGN_CONFLICT)
		return true;
	return cgn_ok(CGN_FAIL(err, STORAGE,
		"%s, another router of this cluster: give each router a cluster.state_dir of its own",
		why.msg));
}

void state_place_close(struct state_place *p)
{
	if (p->fd >= 0)
		(void)close(p->fd);
	free(p->path);
	*p = (struct state_place){.fd = -1};
}
