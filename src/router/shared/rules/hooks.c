/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/rules/hooks.h"

#include "base/weburl/weburl.h"
#include "io/net/tls/tls.h"
#include "joint/web/webclient/webclient.h"

/* Copy and check a URL. Sets |*tls| if it is https. */
static CGN_RC url_fill(const char *key, const char *url, struct cgn_arena *arena, const char **out, bool *tls,
	struct cgn_err *err)
{
	struct weburl parts;
	struct cgn_err why;
	if (url == NULL)
		return CGN_OK;
	if (!cgn_ok(weburl_parse(url, &parts, &why)))
		return CGN_FAIL(err, INVALID, "hooks.%s: %.400s", key, why.msg);
	*out = cgn_arena_strz(arena, cgn_str_of(url));
	*tls = *tls || parts.tls;
	return *out != NULL ? CGN_OK : CGN_FAIL(err, NO_MEMORY, "hooks: out of memory");
}

CGN_RC gw_hook_rules_fill(const struct config *cfg, struct cgn_arena *arena, struct gw_hook_rules *out,
	struct cgn_err *err)
{
	struct cgn_err why;
	bool tls = false;
	*out = (struct gw_hook_rules){
		.timeout = cfg->hooks.timeout,
		.pass = cfg->hooks.on_failure == CONFIG_HOOK_ALLOW,
		.send_body = cfg->hooks.send_body,
		.max_body = cfg->hooks.max_body,
		.window = cfg->hooks.after_window,
	};
	CGN_TRY(url_fill("before_url", cfg->hooks.before_url, arena, &out->url[GW_HOOK_BEFORE], &tls, err));
	CGN_TRY(url_fill("after_url", cfg->hooks.after_url, arena, &out->url[GW_HOOK_AFTER], &tls, err));
	if (!tls && cfg->hooks.ca_file != NULL)
		return CGN_FAIL(err, INVALID,
			"hooks.ca_file is set, and no URL of a hook begins with https://");
	const struct webclient_cfg web = {.ca_file = cfg->hooks.ca_file};
	if (tls && !cgn_ok(webclient_tls(&web, &out->tls, &why)))
		return CGN_FAIL(err, TLS, "hooks.ca_file: %.400s", why.msg);
	return CGN_OK;
}

void gw_hook_rules_fini(struct gw_hook_rules *h)
{
	tls_ctx_free(&h->tls);
}

CGN_RC gw_hook_rules_check(const struct config *cfg, struct cgn_err *err)
{
	struct cgn_arena arena;
	struct gw_hook_rules h = {0};
	cgn_arena_init(&arena, 16384);
	cgn_rc rc = gw_hook_rules_fill(cfg, &arena, &h, err);
	gw_hook_rules_fini(&h);
	cgn_arena_fini(&arena);
	return rc;
}
