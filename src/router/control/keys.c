/* SPDX-License-Identifier: Apache-2.0 */
/* keys: loads the file of API keys and detects its changes. */
#include <sys/stat.h>

#include "io/disk/disk.h"
#include "router/control/router.h"

#define KEYS_FILE_LIMIT ((size_t)16 * 1024 * 1024)

CGN_RC router_keys_load(const struct config *cfg, struct auth_keys **out, struct cgn_err *err)
{
	*out = NULL;
	if (!cfg->auth.enabled)
		return CGN_OK;
	if (cfg->auth.api_keys_file == NULL)
		return CGN_FAIL(err, INVALID,
			"auth.enabled is true, but auth.api_keys_file is not set: name the file that cgn-ctl key create writes");
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct cgn_err why;
	if (!cgn_ok(disk_read_file(cfg->auth.api_keys_file, KEYS_FILE_LIMIT, &text, &why)))
		/* The configuration is at fault, so INVALID. */
		return CGN_FAIL(err, INVALID, "auth.api_keys_file: %s", why.msg);
	return auth_keys_parse(cfg->auth.api_keys_file, cgn_buf_view(&text), out, err);
}

uint64_t router_keys_fingerprint(const struct config *cfg)
{
	struct stat st;
	if (!cfg->auth.enabled || cfg->auth.api_keys_file == NULL || stat(cfg->auth.api_keys_file, &st) != 0)
		return 0;
	const uint64_t parts[] = {(uint64_t)st.st_ino, (uint64_t)st.st_size, (uint64_t)st.st_mtim.tv_sec,
		(uint64_t)st.st_mtim.tv_nsec};
	return route_hash(parts, sizeof parts);
}
