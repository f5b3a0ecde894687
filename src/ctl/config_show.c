/* SPDX-License-Identifier: Apache-2.0 */
/* config show: the configuration of a running program, from its admin port. */
#include "ctl/ctl.h"

CGN_RC ctl_config_show(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	CGN_TRY(ctl_admin_get(a, a->json ? "/config.json" : "/config", &out, err));
	return ctl_print(&out, err);
}
