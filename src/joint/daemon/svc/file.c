/* SPDX-License-Identifier: Apache-2.0 */
/* svc: finds and reads the configuration file. */
#include <stdlib.h>
#include <unistd.h>

#include "io/os/disk/disk.h"
#include "joint/daemon/svc/svc_priv.h"
#include "policy/fleet/settings/settings.h"

extern char **environ;

/* A named file must exist; the default file in /etc need not. */
static const char *config_path(const struct svc_args *args)
{
	const char *env = getenv("CGN_CONFIG");
	if (args->config_file != NULL)
		return args->config_file;
	if (env != NULL && *env != '\0')
		return env;
	return access(SVC_DEFAULT_CONFIG, F_OK) == 0 ? SVC_DEFAULT_CONFIG : NULL;
}

CGN_RC svc_config_load(const struct svc_args *args, struct config **out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	const char *path = config_path(args);
	struct cgn_err why;
	if (path != NULL &&
		!cgn_ok(disk_read_file(path, SVC_MAX_CONFIG, &text,
			&why))) /* Any failure of the read counts as a config error. */
		return CGN_FAIL(err, INVALID, "configuration: %.350s", why.msg);
	return settings_load(path != NULL ? path : "no file", cgn_buf_view(&text),
		(const char *const *)environ, args->flags, args->n_flags, out, err);
}
