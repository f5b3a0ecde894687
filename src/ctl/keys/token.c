/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/keys/token.h"

#include <stdio.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"
#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"
#include "policy/who/identity/identity.h"

#define FILE_LIMIT ((size_t)1 << 20)

static CGN_RC text_read(const char *file, struct cgn_buf *out, struct cgn_err *err)
{
	if (strcmp(file, "-") != 0)
		return disk_read_file(file, FILE_LIMIT, out, err);
	out->limit = FILE_LIMIT;
	for (;;) {
		char *room = cgn_buf_room(out, 4096);
		size_t n = room != NULL ? fread(room, 1, 4096, stdin) : 0;
		cgn_buf_grew(out, n);
		if (n == 0)
			break;
	}
	return out->bad ? CGN_FAIL(err, TOO_LARGE, "the standard input has more than 1 MiB") : CGN_OK;
}

CGN_RC token_holder(const struct config *cfg, const char *file, struct claims_holder *out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_ON_EXIT(claims_rules_unref) struct claims_rules *rules = NULL;
	CGN_ON_EXIT(jwt_fini) struct jwt t = {0};
	if (cfg->auth.oidc_issuer == NULL)
		return CGN_FAIL(err, INVALID,
			"a token needs auth.oidc_issuer: name the configuration with --config");
	CGN_TRY(claims_rules_new(cfg, &rules, err));
	CGN_TRY(text_read(file, &text, err));
	struct cgn_str token = cgn_buf_view(&text);
	while (token.n > 0 && (token.p[token.n - 1] == '\n' || token.p[token.n - 1] == '\r'))
		token.n--;
	CGN_TRY(jwt_read(token, &t, err));
	return claims_judge(rules, &t, (struct cgn_str){0}, cgn_clock_wall_ms() / 1000, out, err);
}

static void roles_put(const struct claims_holder *h, const struct identity_roles *table, struct json_out *o)
{
	uint64_t bit;
	json_key_open(o, "roles", '[');
	for (size_t i = 0; i < h->n_roles; i++) {
		json_open(o, '{');
		json_key_z(o, "name", h->role[i]);
		json_key_bool(o, "defined", identity_role_find(table, cgn_str_of(h->role[i]), &bit));
		json_close(o, '}');
	}
	json_close(o, ']');
}

static void holder_json(const struct claims_holder *h, const struct identity_roles *table,
	struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	json_open(&o, '{');
	json_key_z(&o, "subject", h->subject);
	json_key_z(&o, "tenant", h->tenant);
	roles_put(h, table, &o);
	json_key_z(&o, "limits", h->limits);
	json_key_u64(&o, "expires", h->expires);
	json_key_bool(&o, "signature_checked", false);
	json_close(&o, '}');
	cgn_buf_char(out, '\n');
}

static void line_put(struct cgn_buf *out, const char *name, struct cgn_str value)
{
	cgn_buf_fmt(out, "%-9s ", name);
	cgn_buf_shown(out, value);
	cgn_buf_char(out, '\n');
}

static void holder_text(const struct claims_holder *h, const struct identity_roles *table,
	struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf roles = {0}, ends = {0};
	uint64_t bit;
	for (size_t i = 0; i < h->n_roles; i++)
		cgn_buf_fmt(&roles, "%s%s%s", i > 0 ? ", " : "", h->role[i],
			identity_role_find(table, cgn_str_of(h->role[i]), &bit) ? "" : " (not defined)");
	auth_time_put(h->expires, &ends);
	line_put(out, "subject", cgn_str_of(h->subject));
	line_put(out, "tenant", cgn_str_of(h->tenant));
	line_put(out, "roles", cgn_buf_view(&roles));
	line_put(out, "limits", cgn_str_of(h->limits[0] != '\0' ? h->limits : "none of its own"));
	line_put(out, "ends", cgn_buf_view(&ends));
	line_put(out, "signature", CGN_STR("not checked"));
}

CGN_RC ctl_auth_token(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_ON_EXIT(config_free) struct config *cfg = NULL;
	CGN_ON_EXIT(identity_roles_unref) struct identity_roles *table = NULL;
	struct cgn_buf out = {0};
	struct claims_holder h;
	const char *file = ctl_flag(a, "--config");
	CGN_TRY(disk_read_file(file, FILE_LIMIT, &text, err));
	CGN_TRY(settings_load(file, cgn_buf_view(&text), (const char *const *)environ, NULL, 0, &cfg, err));
	CGN_TRY(identity_roles_new(cfg, &table, err));
	CGN_TRY(token_holder(cfg, a->n_words > 0 ? a->words[0] : "-", &h, err));
	if (a->json)
		holder_json(&h, table, &out);
	else
		holder_text(&h, table, &out);
	return ctl_print(&out, err);
}
