/* SPDX-License-Identifier: Apache-2.0 */
/* session: the name of its cookie. */
#include "policy/config/config.h"
#include "policy/route/session/session.h"

/* A cookie's name is a token of RFC 6265. */
CGN_RC session_check_config(const struct config *c, struct cgn_err *err)
{
	const char *name = c->router.session_cookie;
	for (const char *p = name; p != NULL && *p != '\0'; p++)
		if (*p <= ' ' || *p > '~' || strchr("()<>@,;:\\\"/[]?={}", *p) != NULL)
			return CGN_FAIL(err, INVALID,
				"%s: router.session_cookie \"%.64s\" is not a name of a cookie: letters, digits and -_.!#$%%&'*+^`|~",
				config_origin(c, "router.session_cookie"), name);
	return CGN_OK;
}
