/* SPDX-License-Identifier: Apache-2.0 */
/* config check: prints the effective configuration of a file and the current environment. */
#include <unistd.h>

#include "ctl/ctl.h"
#include "io/os/disk/disk.h"
#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"

#define FILE_LIMIT ((size_t)1 << 20)

CGN_RC ctl_config_check(const struct ctl_args *a, struct cgn_err *err)
{
	struct cgn_buf text = {0}, out = {0};
	struct config *cfg = NULL;
	CGN_TRY(disk_read_file(a->words[0], FILE_LIMIT, &text, err));
	cgn_rc rc = settings_load(a->words[0], cgn_buf_view(&text), (const char *const *)environ, NULL, 0,
		&cfg, err);
	cgn_buf_fini(&text);
	CGN_TRY(rc);
	if (a->json)
		cgn_buf_fmt(&out, "{\"valid\":true}\n");
	else
		config_print(cfg, &out);
	config_free(&cfg);
	return ctl_print(&out, err);
}
