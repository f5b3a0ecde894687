/* SPDX-License-Identifier: Apache-2.0 */
/* isolation: the file of the secret from which routers derive the salts of tenants. */
#include "policy/who/isolation/isolation.h"

#include <unistd.h>

#include "base/crypto/crypto.h"
#include "ctl/ctl.h"
#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"

CGN_RC ctl_pki_isolation(const struct ctl_args *a, struct cgn_err *err)
{
	const char *path = ctl_flag(a, "--out");
	struct digest secret;
	struct cgn_buf text = {0}, out = {0};
	if (access(path, F_OK) == 0 && !ctl_switch(a, "--rotate"))
		return CGN_FAIL(err, INVALID,
			"%s exists: --rotate replaces the secret, which empties the caches of all tenants",
			path);
	cgn_random(&secret, sizeof secret);
	isolation_secret_put(&secret, &text);
	crypto_wipe(&secret, sizeof secret);
	cgn_rc rc = disk_write_file_atomic(path, cgn_buf_view(&text), 0600, err);
	crypto_wipe(text.p, text.n);
	cgn_buf_fini(&text);
	if (!cgn_ok(rc))
		return rc;
	if (a->json) {
		struct json_out o = json_out_to(&out);
		json_open(&o, '{');
		json_key_z(&o, "file", path);
		json_close(&o, '}');
		cgn_buf_char(&out, '\n');
	} else {
		cgn_buf_fmt(&out, "%s\n", path);
	}
	return ctl_print(&out, err);
}
