/* SPDX-License-Identifier: Apache-2.0 */
/* config: paths that name a credential of the service manager (LoadCredential= of systemd.exec(5)). */
#include "policy/config/config_priv.h"

#define CREDENTIAL "credential:"

static bool is_credential_name(struct cgn_str name)
{
	return name.n > 0 && name.n < 256 && memchr(name.p, '/', name.n) == NULL && name.p[0] != '.';
}

/* Replace a path "credential:NAME" by the file of that name in the folder |dir| of the service manager. */
static CGN_RC credential_place(struct config *c, const struct config_slot *s, const char *dir,
	struct cgn_err *err)
{
	const char **at = (void *)((char *)s->base + s->key->offset);
	if (s->key->kind != KEY_PATH || *at == NULL || strncmp(*at, CREDENTIAL, strlen(CREDENTIAL)) != 0)
		return CGN_OK;
	const char *name = *at + strlen(CREDENTIAL);
	if (!is_credential_name(cgn_str_of(name)))
		return CGN_FAIL(err, INVALID,
			"%s is \"%.200s\": after credential: there must be the name of a credential",
			s->key->path, *at);
	if (dir == NULL)
		return CGN_FAIL(err, INVALID,
			"%s is \"%.200s\", but CREDENTIALS_DIRECTORY is not set: start the program by systemd with "
			"LoadCredential=%.200s:PATH, or name a file",
			s->key->path, *at, name);
	*at = cgn_arena_fmt(&c->store->arena, "%s/%s", dir, name);
	return *at != NULL ? CGN_OK : CGN_FAIL(err, NO_MEMORY, "no memory for the configuration");
}

CGN_RC config_credentials(struct config *c, const char *const *env, struct cgn_err *err)
{
	static const char prefix[] = "CREDENTIALS_DIRECTORY=";
	const char *dir = NULL;
	for (; env != NULL && *env != NULL; env++)
		if (strncmp(*env, prefix, sizeof prefix - 1) == 0)
			dir = *env + sizeof prefix - 1;
	for (size_t i = 0; i < config_globals.n; i++) {
		const struct config_slot s = config_global_slot(c, &config_globals.keys[i]);
		CGN_TRY(credential_place(c, &s, dir, err));
	}
	for (size_t e = 0; e < c->n_engines; e++)
		for (size_t i = 0; i < config_engine_keys.n; i++) {
			const struct config_slot s = config_engine_slot(c, e, &config_engine_keys.keys[i]);
			CGN_TRY(credential_place(c, &s, dir, err));
		}
	for (size_t f = 0; f < CONFIG_FAMILIES; f++)
		for (size_t row = 0; row < config_row_count(c, &config_families[f]); row++)
			for (size_t i = 0; i < config_families[f].keys->n; i++) {
				const struct config_slot s = config_row_slot(c, &config_families[f], row,
					&config_families[f].keys->keys[i]);
				CGN_TRY(credential_place(c, &s, dir, err));
			}
	return CGN_OK;
}
