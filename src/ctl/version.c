/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/ctl.h"

CGN_RC ctl_version(const struct ctl_args *a, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	cgn_buf_fmt(&out, a->json ? "{\"version\":\"%s\"}\n" : "cgn-ctl %s\n", CGN_VERSION);
	return ctl_print(&out, err);
}
