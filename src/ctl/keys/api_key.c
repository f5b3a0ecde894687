/* SPDX-License-Identifier: Apache-2.0 */
/* api_key: the file of API keys. Every change rewrites the file atomically with mode 0600. */
#include <string.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "io/disk/disk.h"
#include "io/loop/loop.h"
#include "policy/auth/auth.h"

#define MOST_TRIES 8 /* Tries to find an id that no other key has. */

/* Read the file; a missing file is empty when |may_be_new|. */
static CGN_RC load_keys(const char *path, bool may_be_new, struct cgn_buf *text, struct auth_keys **keys,
	struct cgn_err *err)
{
	if (!may_be_new || access(path, F_OK) == 0)
		CGN_TRY(disk_read_file(path, AUTH_MAX_FILE, text, err));
	struct digest seed;
	cgn_random(&seed, sizeof seed);
	return auth_keys_parse(path, cgn_buf_view(text), &seed, keys, err);
}

static bool has_id(const struct auth_keys *keys, const char *id)
{
	struct auth_key key;
	for (size_t i = 0; i < auth_keys_count(keys); i++) {
		auth_keys_at(keys, i, &key);
		if (strcmp(id, key.id) == 0)
			return true;
	}
	return false;
}

/* Make a key whose id no other key has. */
static CGN_RC key_make(const struct ctl_args *a, const struct auth_keys *keys, unsigned scopes,
	struct auth_key *key, char secret[AUTH_SECRET_MAX], struct cgn_err *err)
{
	uint8_t entropy[AUTH_SECRET_BYTES];
	cgn_rc rc = CGN_OK;
	for (unsigned i = 0; i < MOST_TRIES; i++) {
		cgn_random(entropy, sizeof entropy);
		rc = auth_key_make(entropy, scopes, cgn_clock_wall_ms() / 1000,
			cgn_str_of(ctl_flag(a, "--name")), cgn_str_of(ctl_flag(a, "--tenant")), key, secret,
			err);
		if (!cgn_ok(rc) || !has_id(keys, key->id))
			break;
		rc = CGN_FAIL(err, UNAVAILABLE, "no free id was found for the key: try again");
	}
	explicit_bzero(entropy, sizeof entropy);
	return rc;
}

static void show_new(const struct ctl_args *a, const struct auth_key *key, const char *secret,
	struct cgn_buf *out)
{
	if (!a->json) {
		cgn_buf_fmt(out, "%s\n", secret);
		return;
	}
	struct json_out o = json_out_to(out);
	json_open(&o, '{');
	json_key_z(&o, "id", key->id);
	json_key_z(&o, "key", secret);
	json_close(&o, '}');
	cgn_buf_char(out, '\n');
}

static CGN_RC append_key(const char *path, struct cgn_buf *text, const struct auth_key *key,
	struct cgn_err *err)
{
	if (text->n > 0 && text->p[text->n - 1] != '\n')
		cgn_buf_char(text, '\n');
	auth_key_format(key, text);
	if (text->bad)
		return CGN_FAIL(err, NO_MEMORY, "out of memory");
	return disk_write_file_atomic(path, cgn_buf_view(text), 0600, err);
}

CGN_RC ctl_key_create(const struct ctl_args *a, struct cgn_err *err)
{
	const char *path = ctl_flag(a, "--file");
	char secret[AUTH_SECRET_MAX];
	unsigned scopes = 0;
	struct auth_key key;
	struct auth_keys *keys = NULL;
	struct cgn_buf text = {0}, out = {0};
	CGN_TRY(auth_scopes_parse(cgn_str_of(ctl_flag(a, "--scopes")), &scopes, err));
	cgn_rc rc = load_keys(path, true, &text, &keys, err);
	if (cgn_ok(rc))
		rc = key_make(a, keys, scopes, &key, secret, err);
	if (cgn_ok(rc))
		rc = append_key(path, &text, &key, err);
	if (cgn_ok(rc)) {
		show_new(a, &key, secret, &out);
		rc = ctl_print(&out, err);
		if (!a->json && ctl_is_terminal(STDOUT_FILENO))
			(void)fprintf(stderr, "key %s was added to %s. It is shown this once.\n", key.id,
				path);
	}
	explicit_bzero(secret, sizeof secret);
	auth_keys_unref(&keys);
	cgn_buf_fini(&text);
	return rc;
}

/* Append the text without the line of key |id|, keeping comments and order. */
static void put_without(struct cgn_str text, const char *id, struct cgn_buf *out)
{
	struct cgn_str rest = text;
	while (rest.p != NULL && rest.n > 0) {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		struct cgn_str words = cgn_str_trim(line);
		if (cgn_str_is(cgn_str_split(&words, ' '), id))
			continue;
		cgn_buf_str(out, line);
		cgn_buf_char(out, '\n');
	}
}

CGN_RC ctl_key_revoke(const struct ctl_args *a, struct cgn_err *err)
{
	const char *path = ctl_flag(a, "--file");
	struct auth_keys *keys = NULL;
	struct cgn_buf text = {0}, kept = {0}, out = {0};
	cgn_rc rc = load_keys(path, false, &text, &keys, err);
	if (cgn_ok(rc) && !has_id(keys, a->words[0]))
		rc = CGN_FAIL(err, NOT_FOUND, "%s has no key %s; cgn-ctl key ls lists them", path,
			a->words[0]);
	if (cgn_ok(rc)) {
		put_without(cgn_buf_view(&text), a->words[0], &kept);
		rc = kept.bad ? CGN_FAIL(err, NO_MEMORY, "out of memory")
			      : disk_write_file_atomic(path, cgn_buf_view(&kept), 0600, err);
	}
	if (cgn_ok(rc)) {
		cgn_buf_fmt(&out, a->json ? "{\"id\":\"%s\",\"revoked\":true}\n" : "%s revoked\n",
			a->words[0]);
		rc = ctl_print(&out, err);
	}
	auth_keys_unref(&keys);
	cgn_buf_fini(&text);
	cgn_buf_fini(&kept);
	return rc;
}

CGN_RC ctl_key_ls(const struct ctl_args *a, struct cgn_err *err)
{
	static const char *const columns[] = {"ID", "TENANT", "SCOPES", "CREATED", "NAME"};
	struct auth_keys *keys = NULL;
	struct cgn_buf text = {0};
	struct ctl_table t = {0};
	cgn_rc rc = load_keys(ctl_flag(a, "--file"), false, &text, &keys, err);
	cgn_buf_fini(&text);
	CGN_TRY(rc);
	for (size_t i = 0; i < CGN_COUNT(columns); i++)
		ctl_table_column(&t, columns[i], false);
	for (size_t i = 0; i < auth_keys_count(keys); i++) {
		struct auth_key k;
		struct cgn_buf scopes = {0};
		auth_keys_at(keys, i, &k);
		auth_scopes_format(k.scopes, &scopes);
		ctl_table_cell(&t, "%s", k.id);
		ctl_table_cell(&t, "%s", auth_key_tenant(&k));
		ctl_table_cell(&t, "%s", cgn_buf_z(&scopes));
		ctl_table_cell(&t, "%s", k.created);
		ctl_table_cell(&t, "%s", k.name);
		cgn_buf_fini(&scopes);
	}
	auth_keys_unref(&keys);
	return ctl_table_print(&t, a->json, err);
}
