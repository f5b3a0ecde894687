/* SPDX-License-Identifier: Apache-2.0 */
/* admin: answers of a program's admin port. */
#include <stdio.h>
#include <stdlib.h>

#include "ctl/ctl.h"
#include "io/os/loop/loop.h"
#include "joint/ctl/client/client.h"
#include "joint/ctl/client/origin.h"

/* "HOST:PORT" is short for "http://HOST:PORT", and with --ca for "https://HOST:PORT". */
static CGN_RC admin_get(const struct ctl_args *a, struct cgn_loop *l, struct ctl_origin *o, const char *path,
	struct cgn_buf *out, struct cgn_err *err)
{
	const char *admin = ctl_flag(a, "--admin");
	char url[300];
	bool whole = strstr(admin, "://") != NULL;
	if (snprintf(url, sizeof url, "%s%s",
		    whole                                 ? ""
			    : ctl_flag(a, "--ca") != NULL ? "https://"
							  : "http://",
		    admin) >= (int)sizeof url)
		return CGN_FAIL(err, INVALID, "--admin is too long");
	const struct tls_cfg tls = {.ca_file = ctl_flag(a, "--ca"),
		.cert_file = ctl_flag(a, "--cert"),
		.key_file = ctl_flag(a, "--key"),
		.crl_file = ctl_flag(a, "--crl")};
	CGN_TRY(ctl_crl_check(&tls, err));
	if ((tls.cert_file == NULL) != (tls.key_file == NULL))
		return CGN_FAIL(err, INVALID, "--cert and --key go together");
	CGN_TRY(ctl_origin_open(l, url, &tls, 1, o, err));
	CGN_TRY(ctl_flag_duration(a, "--timeout", &o->timeout, err));
	return ctl_origin_get(l, o, path, getenv("CGN_API_KEY"), out, err);
}

CGN_RC ctl_admin_get(const struct ctl_args *a, const char *path, struct cgn_buf *out, struct cgn_err *err)
{
	struct cgn_loop *l = NULL;
	struct ctl_origin o = {.client = NULL};
	CGN_TRY(cgn_loop_new(&l, err));
	cgn_rc rc = admin_get(a, l, &o, path, out, err);
	ctl_origin_close(&o);
	cgn_loop_close(&l);
	return rc;
}
