/* SPDX-License-Identifier: Apache-2.0 */
/* can_i: asks the rules of a configuration whether the holder of a key, a certificate, a token or a role may do
 * something. */
#include <stdio.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "ctl/keys/token.h"
#include "io/net/pki/pki.h"
#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"
#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"
#include "policy/who/auth/auth.h"
#include "policy/who/identity/identity.h"

#define FILE_LIMIT ((size_t)1 << 20)

/* The rules, and whose rights are asked for. */
struct asker {
	struct config *cfg;
	struct identity_roles *roles;
	struct principal who;
	struct auth_key key;         /* Filled in for --key-id. */
	struct pki_info cert;        /* Filled in for --cert. */
	struct claims_holder holder; /* Filled in for --token. */
	struct cgn_buf uris;
};

static void asker_fini(struct asker *k)
{
	identity_roles_unref(&k->roles);
	config_free(&k->cfg);
	cgn_buf_fini(&k->uris);
}

static CGN_RC rules_load(const struct ctl_args *a, struct asker *k, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	const char *file = ctl_flag(a, "--config");
	if (file != NULL)
		CGN_TRY(disk_read_file(file, FILE_LIMIT, &text, err));
	CGN_TRY(settings_load(file != NULL ? file : "defaults", cgn_buf_view(&text),
		(const char *const *)environ, NULL, 0, &k->cfg, err));
	return identity_roles_new(k->cfg, &k->roles, err);
}

static CGN_RC role_add(struct asker *k, const char *name, struct cgn_err *err)
{
	uint64_t bit;
	if (!identity_role_find(k->roles, cgn_str_of(name), &bit))
		return CGN_FAIL(err, NOT_FOUND,
			"there is no role \"%.80s\": docs/reference/permissions.md lists the built-in ones, and --config names the file with [roles.\"%.80s\"]",
			name, name);
	k->who.roles |= bit;
	return CGN_OK;
}

static CGN_RC key_take(const struct ctl_args *a, struct asker *k, const char *id, struct cgn_err *err)
{
	const char *path = ctl_flag(a, "--file") != NULL ? ctl_flag(a, "--file") : k->cfg->auth.api_keys_file;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_ON_EXIT(auth_keys_unref) struct auth_keys *keys = NULL;
	struct digest seed = {0};
	if (path == NULL)
		return CGN_FAIL(err, INVALID,
			"--key-id needs the file of keys: --file, or auth.api_keys_file of --config");
	CGN_TRY(disk_read_file(path, AUTH_MAX_FILE, &text, err));
	CGN_TRY(auth_keys_parse(path, cgn_buf_view(&text), &seed, &keys, err));
	if (!auth_keys_by_id(keys, cgn_str_of(id), &k->key))
		return CGN_FAIL(err, NOT_FOUND, "%s has no key %.80s; cgn-ctl key ls lists them", path, id);
	k->who.kind = IDENTITY_KEY;
	k->who.name = cgn_str_of(k->key.id);
	k->who.tenant = cgn_str_of(auth_key_tenant(&k->key));
	if (k->key.role[0] != '\0')
		return role_add(k, k->key.role, err);
	k->who.roles = IDENTITY_BIT(USER);
	return CGN_OK;
}

static CGN_RC cert_take(struct asker *k, const char *path, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_TRY(disk_read_file(path, FILE_LIMIT, &text, err));
	CGN_TRY(cgn_err_of(pki_inspect(cgn_buf_view(&text), &k->cert, err), path, err));
	for (size_t i = 0; i < k->cert.n_names; i++)
		cgn_buf_fmt(&k->uris, "%s%s", i > 0 ? " " : "", k->cert.names[i]);
	identity_of_certificate(k->roles, k->cfg->cluster.name, cgn_str_of(k->cert.subject),
		cgn_buf_view(&k->uris), &k->who);
	return CGN_OK;
}

static CGN_RC token_take(struct asker *k, const char *file, struct cgn_err *err)
{
	CGN_TRY(token_holder(k->cfg, file, &k->holder, err));
	k->who.kind = IDENTITY_USER;
	k->who.name = cgn_str_of(k->holder.subject);
	k->who.tenant = cgn_str_of(k->holder.tenant);
	k->who.roles = claims_roles(&k->holder, k->roles);
	return CGN_OK;
}

static CGN_RC asker_find(const struct ctl_args *a, struct asker *k, struct cgn_err *err)
{
	const char *role = ctl_flag(a, "--role"), *id = ctl_flag(a, "--key-id"),
		   *cert = ctl_flag(a, "--cert"), *token = ctl_flag(a, "--token");
	if ((role != NULL) + (id != NULL) + (cert != NULL) + (token != NULL) != 1)
		return CGN_FAIL(err, INVALID,
			"whose rights? one of --role NAME, --key-id ID, --cert FILE and --token FILE is needed");
	if (token != NULL)
		return token_take(k, token, err);
	if (cert != NULL)
		return cert_take(k, cert, err);
	if (id != NULL)
		return key_take(a, k, id, err);
	k->who.kind = IDENTITY_USER;
	k->who.name = cgn_str_of(role);
	return role_add(k, role, err);
}

static bool holder_may(const struct asker *k, enum identity_action action, struct cgn_str object)
{
	uint64_t now = cgn_clock_wall_ms() / 1000;
	bool ended = k->key.locked > 0 || (k->key.expires > 0 && now >= k->key.expires);
	bool hidden = action == ACTION_MODEL_USE && object.p != NULL &&
		!auth_models_have(cgn_str_of(k->key.models), object);
	return !ended && !hidden && authorize(k->roles, &k->who, action, object);
}

static CGN_RC answer_one(const struct ctl_args *a, const struct asker *k, struct cgn_err *err)
{
	enum identity_action action;
	struct cgn_buf out = {0};
	struct cgn_str object = cgn_str_of(a->words[0]), name = cgn_str_split(&object, ':');
	if (!identity_action_find(name, &action))
		return CGN_FAIL(err, INVALID,
			"'%.80s' is not an action; cgn-ctl auth can-i --list shows those that are allowed, docs/reference/permissions.md all",
			a->words[0]);
	if (!holder_may(k, action, object))
		return CGN_FAIL(err, FORBIDDEN, "no");
	cgn_buf_fmt(&out, a->json ? "{\"allowed\":true}\n" : "yes\n");
	return ctl_print(&out, err);
}

static CGN_RC answer_all(const struct ctl_args *a, const struct asker *k, struct cgn_err *err)
{
	struct ctl_table t = {0};
	for (int i = 0; i < IDENTITY_ACTIONS; i++) {
		CTL_CELL(&t, "ACTION", "%s", identity_action_text((enum identity_action)i));
		CTL_CELL(&t, "ALLOWED", "%s",
			holder_may(k, (enum identity_action)i, (struct cgn_str){NULL, 0}) ? "yes" : "no");
	}
	return ctl_table_print(&t, a->json, err);
}

CGN_RC ctl_auth_can_i(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(asker_fini) struct asker k = {.cfg = NULL};
	CGN_TRY(rules_load(a, &k, err));
	CGN_TRY(asker_find(a, &k, err));
	if (a->n_words > 0)
		return answer_one(a, &k, err);
	if (ctl_switch(a, "--list"))
		return answer_all(a, &k, err);
	return CGN_FAIL(err, INVALID, "name an action, or --list");
}
