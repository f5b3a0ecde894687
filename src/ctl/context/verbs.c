/* SPDX-License-Identifier: Apache-2.0 */
/* context, the room: the verbs that list, show, choose, write and delete contexts. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/ctl.h"
#include "joint/ctl/context/context.h"

#define NAME_MAX_BYTES 64

static CGN_RC find_named(struct contexts *c, const char *name, struct context **out, struct cgn_err *err)
{
	*out = context_find(c, name);
	return *out != NULL ? CGN_OK
			    : CGN_FAIL(err, NOT_FOUND,
				      "there is no context '%.100s' in %.200s; cgn-ctl context ls lists them",
				      name, c->path);
}

static bool is_current(const struct contexts *c, const struct context *x)
{
	return c->current != NULL && strcmp(c->current, x->name) == 0;
}

static const char *or_empty(const char *z)
{
	return z != NULL ? z : "";
}

CGN_RC ctl_context_ls(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(contexts_free) struct contexts *c = NULL;
	struct ctl_table t = {.wide = a->wide};
	CGN_TRY(contexts_load(&c, err));
	ctl_table_column(&t, "NAME", false);
	ctl_table_column(&t, "CURRENT", false);
	ctl_table_column(&t, "ROUTER", false);
	ctl_table_column(&t, "KV", false);
	ctl_table_column(&t, "TLS", false);
	ctl_table_wide_column(&t, "CA", false);
	ctl_table_wide_column(&t, "CERT", false);
	ctl_table_wide_column(&t, "KEY", false);
	ctl_table_wide_column(&t, "CRL", false);
	for (size_t i = 0; i < c->n; i++) {
		const struct context *x = &c->list[i];
		ctl_table_cell(&t, "%s", x->name);
		ctl_table_cell(&t, "%s", is_current(c, x) ? "*" : "");
		ctl_table_cell(&t, "%s", or_empty(x->value[CONTEXT_ROUTER]));
		ctl_table_cell(&t, "%s", or_empty(x->value[CONTEXT_KV]));
		ctl_table_cell(&t, "%s",
			x->value[CONTEXT_CERT] != NULL         ? "mutual"
				: x->value[CONTEXT_CA] != NULL ? "yes"
							       : "no");
		for (size_t m = CONTEXT_CA; m < CONTEXT_MEMBERS; m++)
			ctl_table_cell(&t, "%s", or_empty(x->value[m]));
	}
	return ctl_table_print(&t, a->json, err);
}

static void show_json(const struct contexts *c, const struct context *x, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	json_open(&o, '{');
	json_key_z(&o, "name", x->name);
	json_key_bool(&o, "current", is_current(c, x));
	for (size_t m = 0; m < CONTEXT_MEMBERS; m++) {
		json_key(&o, context_key((enum context_member)m));
		if (x->value[m] != NULL)
			json_put_z(&o, x->value[m]);
		else
			json_put_null(&o);
	}
	json_key_z(&o, "file", c->path);
	json_close(&o, '}');
	cgn_buf_char(out, '\n');
}

CGN_RC ctl_context_show(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(contexts_free) struct contexts *c = NULL;
	const struct context *x = NULL;
	struct context *named = NULL;
	struct cgn_buf out = {0};
	CGN_TRY(contexts_load(&c, err));
	if (a->n_words > 0) {
		CGN_TRY(find_named(c, a->words[0], &named, err));
		x = named;
	} else {
		CGN_TRY(context_in_use(a, c, &x, err));
	}
	if (x == NULL)
		return CGN_FAIL(err, NOT_FOUND,
			"no context is in use; cgn-ctl context use NAME chooses one of %.300s", c->path);
	if (a->json) {
		show_json(c, x, &out);
		return ctl_print(&out, err);
	}
	cgn_buf_fmt(&out, "name      %s%s\n", ctl_shown(x->name), is_current(c, x) ? " (current)" : "");
	for (size_t m = 0; m < CONTEXT_MEMBERS; m++)
		if (x->value[m] != NULL)
			cgn_buf_fmt(&out, "%-9s %s\n", context_key((enum context_member)m),
				ctl_shown(x->value[m]));
	cgn_buf_fmt(&out, "file      %s\n", ctl_shown(c->path));
	return ctl_print(&out, err);
}

static CGN_RC say_done(const struct ctl_args *a, const char *name, const char *what, const char *tail,
	struct cgn_err *err)
{
	struct cgn_buf out = {0};
	struct json_out o = json_out_to(&out);
	if (!a->json) {
		cgn_buf_fmt(&out, "context %s %s%s\n", ctl_shown(name), what, tail);
		return ctl_print(&out, err);
	}
	json_open(&o, '{');
	json_key_z(&o, "name", name);
	json_key_z(&o, "done", what);
	json_close(&o, '}');
	cgn_buf_char(&out, '\n');
	return ctl_print(&out, err);
}

CGN_RC ctl_context_use(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(contexts_free) struct contexts *c = NULL;
	struct context *x = NULL;
	CGN_TRY(contexts_load(&c, err));
	CGN_TRY(find_named(c, a->words[0], &x, err));
	c->current = x->name;
	CGN_TRY(contexts_save(c, err));
	return say_done(a, x->name, "is current", "", err);
}

CGN_RC ctl_context_delete(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(contexts_free) struct contexts *c = NULL;
	struct context *x = NULL;
	CGN_TRY(contexts_load(&c, err));
	CGN_TRY(find_named(c, a->words[0], &x, err));
	bool current = is_current(c, x);
	if (current)
		c->current = NULL;
	size_t at = (size_t)(x - c->list);
	memmove(x, x + 1, (--c->n - at) * sizeof *x);
	CGN_TRY(contexts_save(c, err));
	return say_done(a, a->words[0], "deleted", current ? "; no context is current now" : "", err);
}

static bool name_fits(const char *name)
{
	size_t n = strlen(name);
	return n > 0 && n <= NAME_MAX_BYTES &&
		name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")] ==
		'\0';
}

/* Set one member from its flag: an empty value removes it, a file is stored with its whole path. */
static CGN_RC member_set(struct contexts *c, struct context *x, enum context_member m, const char *value,
	struct cgn_err *err)
{
	char path[PATH_MAX];
	if (value == NULL)
		return CGN_OK;
	x->value[m] = NULL;
	if (value[0] == '\0')
		return CGN_OK;
	if (m >= CONTEXT_CA && realpath(value, path) == NULL)
		return CGN_FAIL(err, NOT_FOUND, "--%s %.300s: %s", context_key(m), value, strerror(errno));
	x->value[m] = cgn_arena_strz(&c->arena, cgn_str_of(m >= CONTEXT_CA ? path : value));
	return x->value[m] != NULL ? CGN_OK : CGN_FAIL(err, NO_MEMORY, "out of memory");
}

static CGN_RC context_make(struct contexts *c, const char *name, struct context **out, struct cgn_err *err)
{
	*out = context_find(c, name);
	if (*out != NULL)
		return CGN_OK;
	if (!name_fits(name))
		return CGN_FAIL(err, INVALID,
			"'%.100s' cannot be the name of a context: letters, digits, '.', '_' and '-', at most %d",
			name, NAME_MAX_BYTES);
	if (c->n == CONTEXTS_MAX)
		return CGN_FAIL(err, OVERLOADED, "%.300s has %d contexts already", c->path, CONTEXTS_MAX);
	*out = &c->list[c->n++];
	**out = (struct context){.name = name};
	if (c->n == 1)
		c->current = name;
	return CGN_OK;
}

CGN_RC ctl_context_set(const struct ctl_args *a, struct cgn_err *err)
{
	static const char *const flags[CONTEXT_MEMBERS] = {"--router", "--kv", "--ca", "--cert", "--key",
		"--crl"};
	CGN_ON_EXIT(contexts_free) struct contexts *c = NULL;
	struct context *x = NULL;
	CGN_TRY(contexts_load(&c, err));
	CGN_TRY(context_make(c, a->words[0], &x, err));
	for (size_t m = 0; m < CONTEXT_MEMBERS; m++)
		CGN_TRY(member_set(c, x, (enum context_member)m, ctl_flag(a, flags[m]), err));
	if ((x->value[CONTEXT_CERT] == NULL) != (x->value[CONTEXT_KEY] == NULL))
		return CGN_FAIL(err, INVALID,
			"a context has both a certificate and its key, or neither: --cert and --key");
	CGN_TRY(contexts_save(c, err));
	return say_done(a, x->name, "saved", is_current(c, x) ? "; it is the current one" : "", err);
}
