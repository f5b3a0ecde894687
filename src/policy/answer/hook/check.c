/* SPDX-License-Identifier: Apache-2.0 */
/* hook: its settings. The router parses the whole URLs. */
#include "policy/answer/hook/hook.h"
#include "policy/config/config.h"

CGN_RC hook_check_config(const struct config *c, struct cgn_err *err)
{
	CGN_TRY(config_check_url(c, "hooks.before_url", c->hooks.before_url, err));
	CGN_TRY(config_check_url(c, "hooks.after_url", c->hooks.after_url, err));
	if (c->hooks.after_window > c->hooks.max_body)
		return CGN_FAIL(err, INVALID,
			"%s: hooks.after_window (%llu bytes) is larger than hooks.max_body (%llu): no window would ever be full",
			config_origin(c, "hooks.after_window"), (unsigned long long)c->hooks.after_window,
			(unsigned long long)c->hooks.max_body);
	return CGN_OK;
}
