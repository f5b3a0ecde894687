/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/ctl/context/context.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/toml/toml.h"
#include "io/os/disk/disk.h"

#define ARENA_BYTES ((size_t)4 << 20)

static const char *const keys[CONTEXT_MEMBERS] = {"router", "kv", "ca", "cert", "key", "crl"};

const char *context_key(enum context_member m)
{
	return keys[m];
}

/* ---- reading ---- */

static const char *env_value(const char *name)
{
	const char *z = getenv(name);
	return z != NULL && z[0] != '\0' ? z : NULL;
}

static CGN_RC find_path(struct contexts *c, struct cgn_err *err)
{
	const char *named = env_value("CGN_CONTEXTS"), *config = env_value("XDG_CONFIG_HOME"),
		   *home = env_value("HOME");
	if (named != NULL)
		c->path = cgn_arena_strz(&c->arena, cgn_str_of(named));
	else if (config != NULL)
		c->path = cgn_arena_fmt(&c->arena, "%s/cognitora/contexts.toml", config);
	else if (home != NULL)
		c->path = cgn_arena_fmt(&c->arena, "%s/.config/cognitora/contexts.toml", home);
	else
		c->path = "";
	return c->path != NULL ? CGN_OK : CGN_FAIL(err, NO_MEMORY, "out of memory");
}

static CGN_RC check_owner(const char *path, struct cgn_err *err)
{
	struct stat st;
	if (stat(path, &st) != 0)
		return CGN_OK; /* The read that follows fails, and says why. */
	if (st.st_uid != geteuid() && st.st_uid != 0)
		return CGN_FAIL(err, FORBIDDEN, "%.300s belongs to another user (%u): it is not used", path,
			(unsigned)st.st_uid);
	if ((st.st_mode & 022) != 0)
		return CGN_FAIL(err, FORBIDDEN, "%.300s can be changed by others: chmod 600 it", path);
	return CGN_OK;
}

static struct context *context_add(struct contexts *c, struct cgn_str name)
{
	const char *z = cgn_arena_strz(&c->arena, name);
	struct context *x = z != NULL ? context_find(c, z) : NULL;
	if (x != NULL || z == NULL || c->n == CONTEXTS_MAX)
		return x;
	c->list[c->n] = (struct context){.name = z};
	return &c->list[c->n++];
}

static cgn_rc place_fail(const struct contexts *c, const struct toml_node *n, const char *what,
	struct cgn_err *err)
{
	return CGN_FAIL(err, INVALID, "%.200s:%u:%u: %s", c->path, n->key_at.line, n->key_at.column, what);
}

static cgn_rc read_member(struct contexts *c, const struct toml_node *n, struct cgn_err *err)
{
	struct context *x = context_add(c, n->path[1].key);
	if (x == NULL)
		return place_fail(c, n, "too many contexts", err);
	for (size_t m = 0; m < CONTEXT_MEMBERS; m++)
		if (cgn_str_is(n->path[2].key, keys[m]) && n->type == TOML_STRING) {
			x->value[m] = cgn_arena_strz(&c->arena, n->text);
			return CGN_OK;
		}
	return place_fail(c, n, "a context has the texts router, kv, ca, cert, key and crl", err);
}

static cgn_rc on_node(void *arg, const struct toml_node *n, struct cgn_err *err)
{
	struct contexts *c = arg;
	bool list = cgn_str_is(n->path[0].key, "contexts");
	if (n->depth == 1 && n->type == TOML_STRING && cgn_str_is(n->path[0].key, "current")) {
		c->current = n->text.n > 0 ? cgn_arena_strz(&c->arena, n->text) : NULL;
		return CGN_OK;
	}
	if (list && n->depth == 1 && n->type == TOML_TABLE)
		return CGN_OK;
	if (list && n->depth == 2 && n->type == TOML_TABLE)
		return context_add(c, n->path[1].key) != NULL ? CGN_OK
							      : place_fail(c, n, "too many contexts", err);
	if (list && n->depth == 3)
		return read_member(c, n, err);
	return place_fail(c, n, "unknown key; there are current and [contexts.NAME]", err);
}

static CGN_RC read_file(struct contexts *c, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	if (c->path[0] == '\0')
		return CGN_OK;
	CGN_TRY(check_owner(c->path, err));
	cgn_rc rc = disk_read_file(c->path, TOML_MAX_BYTES, &text, err);
	if (rc.code == CGN_NOT_FOUND)
		return CGN_OK;
	CGN_TRY(rc);
	return toml_parse(c->path, cgn_buf_view(&text), on_node, c, err);
}

CGN_RC contexts_load(struct contexts **out, struct cgn_err *err)
{
	struct contexts *c = CGN_NEW(struct contexts);
	cgn_arena_init(&c->arena, ARENA_BYTES);
	*out = c;
	CGN_TRY(find_path(c, err));
	return read_file(c, err);
}

void contexts_free(struct contexts **take)
{
	struct contexts *c = CGN_TAKE(take);
	if (c == NULL)
		return;
	cgn_arena_fini(&c->arena);
	free(c);
}

struct context *context_find(struct contexts *c, const char *name)
{
	for (size_t i = 0; i < c->n; i++)
		if (strcmp(c->list[i].name, name) == 0)
			return &c->list[i];
	return NULL;
}

/* ---- writing ---- */

static void put_quoted(struct cgn_buf *out, const char *z) /* TOML uses the escapes of JSON. */
{
	struct json_out o = json_out_to(out);
	json_put_z(&o, z);
}

CGN_RC contexts_save(const struct contexts *c, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	char dir[4096];
	const char *slash = strrchr(c->path, '/');
	if (c->path[0] == '\0')
		return CGN_FAIL(err, NOT_FOUND,
			"there is no place for contexts: set $HOME, $XDG_CONFIG_HOME or $CGN_CONTEXTS");
	cgn_buf_fmt(&text, "# Written by cgn-ctl context.\ncurrent = ");
	put_quoted(&text, c->current != NULL ? c->current : "");
	cgn_buf_char(&text, '\n');
	for (size_t i = 0; i < c->n; i++) {
		cgn_buf_putz(&text, "\n[contexts.");
		put_quoted(&text, c->list[i].name);
		cgn_buf_putz(&text, "]\n");
		for (size_t m = 0; m < CONTEXT_MEMBERS; m++) {
			if (c->list[i].value[m] == NULL)
				continue;
			cgn_buf_fmt(&text, "%s = ", keys[m]);
			put_quoted(&text, c->list[i].value[m]);
			cgn_buf_char(&text, '\n');
		}
	}
	if (slash != NULL && slash != c->path &&
		cgn_str_copyz(dir, sizeof dir, (struct cgn_str){c->path, (size_t)(slash - c->path)}))
		CGN_TRY(disk_mkdirs(dir, 0700, err));
	return disk_write_file_atomic(c->path, cgn_buf_view(&text), 0600, err);
}

/* ---- the context of a verb ---- */

const char *context_named(const struct ctl_args *a)
{
	const char *flag = ctl_flag(a, "--context");
	return flag != NULL ? flag : getenv("CGN_CONTEXT");
}

CGN_RC context_in_use(const struct ctl_args *a, struct contexts *c, const struct context **out,
	struct cgn_err *err)
{
	const char *named = context_named(a), *name = named != NULL ? named : c->current;
	struct stat st;
	*out = NULL;
	if (name == NULL || name[0] == '\0')
		return CGN_OK;
	*out = context_find(c, name);
	if (*out == NULL)
		return CGN_FAIL(err, NOT_FOUND,
			"there is no context '%.100s' in %.200s; cgn-ctl context ls lists them", name,
			c->path);
	const char *key = (*out)->value[CONTEXT_KEY];
	if (key != NULL && stat(key, &st) == 0 && (st.st_mode & 007) != 0)
		return CGN_FAIL(err, FORBIDDEN,
			"every user can read the key %.300s of context %.100s: chmod 600 it", key, name);
	return CGN_OK;
}
