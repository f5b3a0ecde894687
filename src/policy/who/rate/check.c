/* SPDX-License-Identifier: Apache-2.0 */
/* rate: the URL of the limits that routers share. io/wire/redis parses the whole of it. */
#include "policy/config/config.h"
#include "policy/who/rate/rate.h"

/* The message does not contain the value, which may have a password. */
CGN_RC rate_check_config(const struct config *c, struct cgn_err *err)
{
	const char *url = c->router.rate_limit.redis_url;
	struct cgn_str s = cgn_str_of(url);
	if (url == NULL || cgn_str_starts(s, "redis://") || cgn_str_starts(s, "rediss://") ||
		cgn_str_starts(s, "unix:"))
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"%s: router.rate_limit.redis_url must begin with redis://, rediss:// or unix:",
		config_origin(c, "router.rate_limit.redis_url"));
}
