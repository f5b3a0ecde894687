/* SPDX-License-Identifier: Apache-2.0 */
/* auth: where keys and tokens come from. */
#include "policy/config/config.h"
#include "policy/who/auth/auth.h"

static cgn_rc check_oidc_url(const struct config *c, const char *path, const char *value, struct cgn_err *err)
{
	if (value == NULL || config_is_safe_url(value))
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"%s: %s is \"%.100s\", must begin with https:// (http:// only with 127.0.0.1, [::1] or localhost and a port)",
		config_origin(c, path), path, value);
}

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);
	return n >= m && strcmp(text + n - m, end) == 0;
}

static cgn_rc check_oidc(const struct config *c, struct cgn_err *err)
{
	CGN_TRY(check_oidc_url(c, "auth.oidc_issuer", c->auth.oidc_issuer, err));
	CGN_TRY(check_oidc_url(c, "auth.oidc_redirect_url", c->auth.oidc_redirect_url, err));
	if (c->auth.oidc_issuer != NULL && c->auth.oidc_audience == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: auth.oidc_issuer needs auth.oidc_audience: without it tokens for other services would be taken",
			config_origin(c, "auth.oidc_issuer"));
	if (c->auth.oidc_redirect_url != NULL && !ends_with(c->auth.oidc_redirect_url, "/login/done"))
		return CGN_FAIL(err, INVALID,
			"%s: auth.oidc_redirect_url is \"%.100s\", must end with /login/done",
			config_origin(c, "auth.oidc_redirect_url"), c->auth.oidc_redirect_url);
	if (c->auth.oidc_client_id != NULL &&
		(c->auth.oidc_issuer == NULL || c->auth.oidc_redirect_url == NULL))
		return CGN_FAIL(err, INVALID,
			"%s: auth.oidc_client_id needs auth.oidc_issuer and auth.oidc_redirect_url",
			config_origin(c, "auth.oidc_client_id"));
	return CGN_OK;
}

CGN_RC auth_check_config(const struct config *c, struct cgn_err *err)
{
	if (c->auth.enabled && c->auth.api_keys_file == NULL && c->auth.oidc_issuer == NULL)
		return CGN_FAIL(err, INVALID,
			"%s: auth.enabled needs auth.api_keys_file (cgn-ctl key create writes it) or auth.oidc_issuer",
			config_origin(c, "auth.enabled"));
	return check_oidc(c, err);
}
