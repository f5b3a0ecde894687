/* SPDX-License-Identifier: Apache-2.0 */
/* api_key: the file of API keys. Every change rewrites the file atomically with mode 0600. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/file.h>

#include "base/json/json.h"
#include "ctl/ctl.h"
#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"
#include "policy/who/auth/auth.h"

#define MOST_TRIES 8               /* Tries to find an id that no other key has. */
#define MOST_DAYS  UINT64_C(36500) /* For an end from now. */

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

/* Fill in a secret, and an id that no other key has. */
static CGN_RC key_make(const struct auth_keys *keys, struct auth_key *key, char secret[AUTH_SECRET_MAX],
	struct cgn_err *err)
{
	uint8_t entropy[AUTH_SECRET_BYTES];
	cgn_rc rc = CGN_OK;
	struct auth_key other;
	for (unsigned i = 0; i < MOST_TRIES; i++) {
		cgn_random(entropy, sizeof entropy);
		rc = auth_key_make(entropy, cgn_clock_wall_ms() / 1000, key, secret, err);
		if (!cgn_ok(rc) || !auth_keys_by_id(keys, cgn_str_of(key->id), &other))
			break;
		rc = CGN_FAIL(err, UNAVAILABLE, "no free id was found for the key: try again");
	}
	explicit_bzero(entropy, sizeof entropy);
	return rc;
}

/* Read a time: "90d", "36h" and so on from now, or a date. */
static CGN_RC time_read(const char *flag, const char *text, uint64_t *out, struct cgn_err *err)
{
	char *end = NULL;
	uint64_t now = cgn_clock_wall_ms() / 1000;
	unsigned long long n = strtoull(text, &end, 10);
	uint64_t unit = strcmp(end, "d") == 0 ? 86400
		: strcmp(end, "h") == 0       ? 3600
		: strcmp(end, "m") == 0       ? 60
		: strcmp(end, "s") == 0       ? 1
					      : 0;
	char day[24];
	if (end != text && unit > 0 && n > 0 && n <= MOST_DAYS * 86400 / unit) {
		*out = now + n * unit;
		return CGN_OK;
	}
	(void)snprintf(day, sizeof day, "%.10sT00:00:00Z", text);
	if (auth_time_parse(cgn_str_of(text), out) ||
		(strlen(text) == 10 && auth_time_parse(cgn_str_of(day), out)))
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"%s takes a time from now such as 90d, 36h or 30m, a day such as 2026-12-31, or a time such as 2026-12-31T18:00:00Z (UTC), not '%.80s'",
		flag, text);
}

static CGN_RC text_take(const struct ctl_args *a, const char *flag, char *out, size_t cap,
	struct cgn_err *err)
{
	const char *text = ctl_flag(a, flag);
	return text == NULL || cgn_str_copyz(out, cap, cgn_str_trim(cgn_str_of(text)))
		? CGN_OK
		: CGN_FAIL(err, INVALID, "%s has more than %zu bytes", flag, cap - 1);
}

/* Read the flags of key create. */
static CGN_RC key_describe(const struct ctl_args *a, struct auth_key *key, struct cgn_err *err)
{
	const char *expires = ctl_flag(a, "--expires");
	*key = (struct auth_key){0};
	CGN_TRY(auth_scopes_parse(cgn_str_of(ctl_flag(a, "--scopes")), &key->scopes, err));
	CGN_TRY(text_take(a, "--name", key->name, sizeof key->name, err));
	CGN_TRY(text_take(a, "--tenant", key->tenant, sizeof key->tenant, err));
	CGN_TRY(text_take(a, "--models", key->models, sizeof key->models, err));
	CGN_TRY(text_take(a, "--limits", key->limits, sizeof key->limits, err));
	CGN_TRY(text_take(a, "--role", key->role, sizeof key->role, err));
	if (expires != NULL)
		CGN_TRY(time_read("--expires", expires, &key->expires, err));
	return auth_key_check(key, err);
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

/* Print the new key. */
static CGN_RC key_tell(const struct ctl_args *a, const struct auth_key *key, const char *secret,
	struct cgn_err *err)
{
	struct cgn_buf out = {0};
	show_new(a, key, secret, &out);
	cgn_rc rc = ctl_print(&out, err);
	if (!a->json && ctl_is_terminal(STDOUT_FILENO))
		(void)fprintf(stderr, "key %s was added to %s. It is shown this once.\n", key->id,
			ctl_flag(a, "--file"));
	return rc;
}

/* The file of keys while a verb changes it. */
struct change {
	int lock; /* Held until the end, so that changes made at once wait for each other. */
	struct auth_keys *keys;
	struct cgn_buf text;
};

static void change_end(struct change *c)
{
	auth_keys_unref(&c->keys);
	cgn_buf_fini(&c->text);
	if (c->lock >= 0)
		(void)close(c->lock);
}

static CGN_RC change_begin(const char *path, bool may_be_new, struct change *c, struct cgn_err *err)
{
	char lock[PATH_MAX];
	if (snprintf(lock, sizeof lock, "%s.lock", path) >= (int)sizeof lock)
		return CGN_FAIL(err, INVALID, "the path is too long: %s", path);
	c->lock = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (c->lock < 0 || flock(c->lock, LOCK_EX) != 0)
		return CGN_FAIL(err, STORAGE, "cannot lock %s: %s", lock, strerror(errno));
	return load_keys(path, may_be_new, &c->text, &c->keys, err);
}

CGN_RC ctl_key_create(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(change_end) struct change c = {.lock = -1};
	char secret[AUTH_SECRET_MAX];
	struct auth_key key;
	CGN_TRY(key_describe(a, &key, err));
	CGN_TRY(change_begin(ctl_flag(a, "--file"), true, &c, err));
	CGN_TRY(key_make(c.keys, &key, secret, err));
	cgn_rc rc = append_key(ctl_flag(a, "--file"), &c.text, &key, err);
	if (cgn_ok(rc))
		rc = key_tell(a, &key, secret, err);
	explicit_bzero(secret, sizeof secret);
	return rc;
}

/* Append the text with |now| in the place of the line of that key, or without the line (NULL); comments and order stay. */
static void put_changed(struct cgn_str text, const char *id, const struct auth_key *now, struct cgn_buf *out)
{
	struct cgn_str rest = text;
	while (rest.p != NULL && rest.n > 0) {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		struct cgn_str words = cgn_str_trim(line);
		if (!cgn_str_is(cgn_str_split(&words, ' '), id)) {
			cgn_buf_str(out, line);
			cgn_buf_char(out, '\n');
		} else if (now != NULL) {
			auth_key_format(now, out);
		}
	}
}

/* Find the key that the verb's word names. */
static CGN_RC key_named(const struct ctl_args *a, const struct change *c, struct auth_key *out,
	struct cgn_err *err)
{
	return auth_keys_by_id(c->keys, cgn_str_of(a->words[0]), out)
		? CGN_OK
		: CGN_FAIL(err, NOT_FOUND, "%s has no key %s; cgn-ctl key ls lists them",
			  ctl_flag(a, "--file"), a->words[0]);
}

/* Write the file with |now| (NULL: nothing) for the key of that id. */
static CGN_RC change_write(const char *path, struct change *c, const char *id, const struct auth_key *now,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf changed = {0};
	put_changed(cgn_buf_view(&c->text), id, now, &changed);
	return changed.bad ? CGN_FAIL(err, NO_MEMORY, "out of memory")
			   : disk_write_file_atomic(path, cgn_buf_view(&changed), 0600, err);
}

static CGN_RC done_tell(const struct ctl_args *a, const char *done, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	cgn_buf_fmt(&out, a->json ? "{\"id\":\"%s\",\"%s\":true}\n" : "%s %s\n", a->words[0], done);
	return ctl_print(&out, err);
}

CGN_RC ctl_key_revoke(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(change_end) struct change c = {.lock = -1};
	struct auth_key key;
	CGN_TRY(change_begin(ctl_flag(a, "--file"), false, &c, err));
	CGN_TRY(key_named(a, &c, &key, err));
	CGN_TRY(change_write(ctl_flag(a, "--file"), &c, key.id, NULL, err));
	return done_tell(a, "revoked", err);
}

static CGN_RC lock_set(const struct ctl_args *a, uint64_t locked, const char *done, struct cgn_err *err)
{
	CGN_ON_EXIT(change_end) struct change c = {.lock = -1};
	struct auth_key key;
	CGN_TRY(change_begin(ctl_flag(a, "--file"), false, &c, err));
	CGN_TRY(key_named(a, &c, &key, err));
	key.locked = locked;
	CGN_TRY(change_write(ctl_flag(a, "--file"), &c, key.id, &key, err));
	return done_tell(a, done, err);
}

CGN_RC ctl_key_lock(const struct ctl_args *a, struct cgn_err *err)
{
	return lock_set(a, cgn_clock_wall_ms() / 1000, "locked", err);
}

CGN_RC ctl_key_unlock(const struct ctl_args *a, struct cgn_err *err)
{
	return lock_set(a, 0, "unlocked", err);
}

/* The new key keeps everything of the old one, its tenant too: a key without one was its own tenant, by its id. */
CGN_RC ctl_key_rotate(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(change_end) struct change c = {.lock = -1};
	const char *path = ctl_flag(a, "--file");
	char secret[AUTH_SECRET_MAX];
	struct auth_key old, fresh;
	uint64_t until;
	CGN_TRY(time_read("--overlap", ctl_flag(a, "--overlap"), &until, err));
	CGN_TRY(change_begin(path, false, &c, err));
	CGN_TRY(key_named(a, &c, &old, err));
	if (old.expires > 0 && old.expires <= cgn_clock_wall_ms() / 1000)
		return CGN_FAIL(err, CONFLICT, "key %s has expired: make a new one with cgn-ctl key create",
			old.id);
	fresh = old;
	(void)cgn_str_copyz(fresh.tenant, sizeof fresh.tenant, cgn_str_of(auth_key_tenant(&old)));
	CGN_TRY(key_make(c.keys, &fresh, secret, err));
	old.expires = old.expires > 0 && old.expires < until ? old.expires : until;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf changed = {0};
	put_changed(cgn_buf_view(&c.text), old.id, &old, &changed);
	cgn_rc rc = append_key(path, &changed, &fresh, err);
	if (cgn_ok(rc))
		rc = key_tell(a, &fresh, secret, err);
	explicit_bzero(secret, sizeof secret);
	return rc;
}

/* Append when the key ends; "locked" and "expired" where it is refused. */
static void end_put(const struct auth_key *k, uint64_t now, struct cgn_buf *out)
{
	if (k->locked > 0)
		cgn_buf_putz(out, "locked");
	else if (k->expires > 0 && k->expires <= now)
		cgn_buf_putz(out, "expired");
	else if (k->expires > 0)
		auth_time_put(k->expires, out);
}

/* Ask the router of --admin when the keys were used last. */
static CGN_RC uses_get(const struct ctl_args *a, struct auth_keys *keys, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0}, lines = {0};
	struct json_val doc, list, one;
	CGN_TRY(ctl_admin_get(a, "/keys", &text, err));
	CGN_TRY(json_parse(cgn_buf_view(&text), &doc, NULL, err));
	if (!json_get(doc, "keys", &list) || list.type != JSON_ARRAY)
		return CGN_FAIL(err, BAD_GATEWAY, "the router's answer has no list of keys");
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &one);) {
		struct json_val id;
		if (json_get(one, "id", &id) && id.type == JSON_STRING)
			json_str_to(id, &lines);
		cgn_buf_fmt(&lines, " %llu\n", (unsigned long long)json_get_u64(one, "last_used", 0));
	}
	if (lines.bad)
		return CGN_FAIL(err, NO_MEMORY, "out of memory");
	auth_keys_used_read(keys, cgn_buf_view(&lines));
	return CGN_OK;
}

static void use_cell(struct ctl_table *t, uint64_t at)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf when = {0};
	if (at > 0)
		auth_time_put(at, &when);
	ctl_table_cell(t, "%s", at > 0 ? cgn_buf_z(&when) : "never");
}

CGN_RC ctl_key_ls(const struct ctl_args *a, struct cgn_err *err)
{
	static const char *const columns[] = {"ID", "TENANT", "SCOPES", "ROLE", "MODELS", "LIMITS", "CREATED",
		"ENDS", "NAME"};
	bool asks = ctl_flag(a, "--admin") != NULL;
	uint64_t now = cgn_clock_wall_ms() / 1000;
	struct auth_keys *keys = NULL;
	struct cgn_buf text = {0};
	struct ctl_table t = {0};
	cgn_rc rc = load_keys(ctl_flag(a, "--file"), false, &text, &keys, err);
	cgn_buf_fini(&text);
	if (cgn_ok(rc) && asks)
		rc = uses_get(a, keys, err);
	if (!cgn_ok(rc)) {
		auth_keys_unref(&keys);
		return rc;
	}
	for (size_t i = 0; i < CGN_COUNT(columns); i++)
		ctl_table_column(&t, columns[i], false);
	if (asks)
		ctl_table_column(&t, "LAST USED", false);
	for (size_t i = 0; i < auth_keys_count(keys); i++) {
		struct auth_key k;
		struct cgn_buf scopes = {0}, end = {0};
		auth_keys_at(keys, i, &k);
		end_put(&k, now, &end);
		auth_scopes_format(k.scopes, &scopes);
		ctl_table_cell(&t, "%s", k.id);
		ctl_table_cell(&t, "%s", auth_key_tenant(&k));
		ctl_table_cell(&t, "%s", cgn_buf_z(&scopes));
		ctl_table_cell(&t, "%s", k.role);
		ctl_table_cell(&t, "%s", k.models);
		ctl_table_cell(&t, "%s", k.limits);
		ctl_table_cell(&t, "%s", k.created);
		ctl_table_cell(&t, "%s", cgn_buf_z(&end));
		ctl_table_cell(&t, "%s", k.name);
		if (asks)
			use_cell(&t, auth_keys_used_at(keys, i));
		cgn_buf_fini(&scopes);
		cgn_buf_fini(&end);
	}
	auth_keys_unref(&keys);
	return ctl_table_print(&t, a->json, err);
}
