/* SPDX-License-Identifier: Apache-2.0 */
/* roles: the table of roles, and the decision. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/core/arena.h"
#include "policy/config/config.h"
#include "policy/who/identity/identity.h"

#define ARENA_MAX ((size_t)4 << 20)

/* A permission: actions, and the objects with which they are allowed. */
struct permission {
	uint64_t actions;       /* Bit i: enum identity_action i. */
	struct cgn_str pattern; /* .p NULL: every object. */
};

struct role {
	const char *name;
	struct permission *allow;
	size_t n_allow;
};

struct identity_roles {
	atomic_uint refs;
	bool is_insecure, is_legacy;
	struct role role[IDENTITY_MAX_ROLES];
	size_t n;
	struct cgn_arena arena;
};

static const uint64_t own_actions =
#define ACTION(id, text, own, help) ((own) ? UINT64_C(1) << ACTION_##id : 0) |
#include "policy/who/identity/actions.def"
#undef ACTION
	0;

static const struct {
	const char *name, *allow;
} built_in[] = {
#define ROLE(id, name, allow, help) [IDENTITY_ROLE_##id] = {name, allow},
#include "policy/who/identity/roles.def"
#undef ROLE
};

_Static_assert(IDENTITY_ACTIONS <= 64, "a permission has 64 bits");

/* Return the actions that "node.cordon", "node.*" or "*" names. */
static uint64_t actions_of(struct cgn_str pattern)
{
	uint64_t bits = 0;
	for (int a = 0; a < IDENTITY_ACTIONS; a++)
		if (cgn_str_glob(pattern, cgn_str_of(identity_action_text((enum identity_action)a))))
			bits |= UINT64_C(1) << a;
	return bits;
}

static CGN_RC permission_read(const char *role, struct cgn_str text, struct permission *out,
	struct cgn_err *err)
{
	const char *colon = memchr(text.p, ':', text.n);
	struct cgn_str action = text;
	*out = (struct permission){0};
	if (colon != NULL) {
		action.n = (size_t)(colon - text.p);
		out->pattern = (struct cgn_str){colon + 1, text.n - action.n - 1};
	}
	out->actions = actions_of(action);
	if (out->actions == 0)
		return CGN_FAIL(err, INVALID,
			"roles.\"%.64s\": allow has \"%.*s\", and no action is named so; docs/reference/permissions.md lists them",
			role, (int)(text.n < 100 ? text.n : 100), text.p);
	if (colon != NULL && out->pattern.n == 0)
		return CGN_FAIL(err, INVALID,
			"roles.\"%.64s\": allow has \"%.*s\": the object after the colon is missing (* is every one)",
			role, CGN_STR_ARG(text));
	return CGN_OK;
}

static CGN_RC role_new(struct identity_roles *t, const char *name, size_t n, struct role **out,
	struct cgn_err *err)
{
	uint64_t bit;
	if (!identity_uri_part_ok(cgn_str_of(name)) || strlen(name) > IDENTITY_ROLE_MAX)
		return CGN_FAIL(err, INVALID,
			"roles.\"%.64s\": a role's name has 1 to %d characters of A-Z a-z 0-9 . _ -", name,
			IDENTITY_ROLE_MAX);
	if (identity_role_find(t, cgn_str_of(name), &bit))
		return CGN_FAIL(err, INVALID,
			"roles.\"%s\": this role exists without configuration; give yours another name",
			name);
	if (t->n == IDENTITY_MAX_ROLES)
		return CGN_FAIL(err, INVALID, "roles: more than %d roles, built-in ones included",
			IDENTITY_MAX_ROLES);
	struct role *r = &t->role[t->n];
	r->name = cgn_arena_strz(&t->arena, cgn_str_of(name));
	r->allow = cgn_arena_get(&t->arena, (n + 1) * sizeof *r->allow);
	r->n_allow = 0;
	if (r->name == NULL || r->allow == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for roles");
	t->n++;
	*out = r;
	return CGN_OK;
}

static CGN_RC role_allow(struct identity_roles *t, struct role *r, struct cgn_str text, struct cgn_err *err)
{
	struct cgn_str kept = cgn_arena_str(&t->arena, text);
	if (kept.p == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for roles");
	return permission_read(r->name, kept, &r->allow[r->n_allow++], err);
}

static CGN_RC roles_built_in(struct identity_roles *t, struct cgn_err *err)
{
	for (size_t i = 0; i < CGN_COUNT(built_in); i++) {
		struct cgn_str rest = cgn_str_of(built_in[i].allow);
		struct role *r;
		CGN_TRY(role_new(t, built_in[i].name, IDENTITY_MAX_ALLOWS, &r, err));
		while (rest.n > 0)
			CGN_TRY(role_allow(t, r, cgn_str_split(&rest, ' '), err));
	}
	return CGN_OK;
}

static CGN_RC roles_configured(struct identity_roles *t, const struct config *cfg, struct cgn_err *err)
{
	t->is_insecure = cfg->security.insecure;
	t->is_legacy = cfg->security.legacy_roles;
	for (size_t i = 0; i < cfg->n_roles; i++) {
		const struct config_role *from = &cfg->roles[i];
		struct role *r;
		CGN_TRY(role_new(t, from->name, from->allow.n, &r, err));
		for (size_t j = 0; j < from->allow.n; j++)
			CGN_TRY(role_allow(t, r, cgn_str_of(from->allow.v[j]), err));
	}
	return CGN_OK;
}

CGN_RC identity_roles_new(const struct config *cfg, struct identity_roles **out, struct cgn_err *err)
{
	CGN_ON_EXIT(identity_roles_unref) struct identity_roles *t = CGN_NEW(struct identity_roles);
	atomic_init(&t->refs, 1);
	cgn_arena_init(&t->arena, ARENA_MAX);
	CGN_TRY(roles_built_in(t, err));
	if (cfg != NULL)
		CGN_TRY(roles_configured(t, cfg, err));
	*out = CGN_TAKE(&t);
	return CGN_OK;
}

void identity_roles_ref(struct identity_roles *t)
{
	(void)atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
}

void identity_roles_unref(struct identity_roles **take)
{
	struct identity_roles *t = CGN_TAKE(take);
	if (t == NULL || atomic_fetch_sub(&t->refs, 1) != 1)
		return;
	cgn_arena_fini(&t->arena);
	free(t);
}

const char *identity_role_name(const struct identity_roles *t, size_t i)
{
	return i < t->n ? t->role[i].name : NULL;
}

bool identity_role_find(const struct identity_roles *t, struct cgn_str name, uint64_t *bit)
{
	for (size_t i = 0; i < t->n; i++)
		if (cgn_str_is(name, t->role[i].name)) {
			*bit = UINT64_C(1) << i;
			return true;
		}
	return false;
}

/* Append the names of |roles|: "agent, kvcached"; "no role" for none. */
static void names_put(const struct identity_roles *t, uint64_t roles, struct cgn_buf *out)
{
	const char *between = "";
	for (size_t i = 0; i < t->n; i++)
		if ((roles >> i & 1) != 0) {
			cgn_buf_fmt(out, "%s%s", between, t->role[i].name);
			between = ", ";
		}
	if (between[0] == '\0')
		cgn_buf_putz(out, "no role");
}

static bool role_allows(const struct role *r, enum identity_action a, struct cgn_str object)
{
	for (size_t i = 0; i < r->n_allow; i++) {
		const struct permission *p = &r->allow[i];
		if ((p->actions >> a & 1) != 0 &&
			(p->pattern.p == NULL || object.p == NULL || cgn_str_glob(p->pattern, object)))
			return true;
	}
	return false;
}

/* Return true if no role limits |p|. */
static bool is_unlimited(const struct identity_roles *t, const struct principal *p)
{
	return (p->kind == IDENTITY_NONE && (p->local || t->is_insecure)) ||
		(p->kind == IDENTITY_CERT && p->legacy && t->is_legacy);
}

bool authorize(const struct identity_roles *t, const struct principal *p, enum identity_action a,
	struct cgn_str object)
{
	if (is_unlimited(t, p))
		return true;
	if ((own_actions >> a & 1) != 0 && object.p != NULL && !cgn_str_eq(object, p->name))
		return false;
	for (size_t i = 0; i < t->n; i++)
		if ((p->roles >> i & 1) != 0 && role_allows(&t->role[i], a, object))
			return true;
	return false;
}

/* Does the pattern |has| fit every object that |wants| fits? Exact for patterns that are equal and for "TEXT*"; false for
 * others, whose objects are not compared. */
static bool pattern_covers(struct cgn_str has, struct cgn_str wants)
{
	size_t lead = 0;
	if (has.p == NULL)
		return true;
	while (lead < has.n && memchr("*?[\\", has.p[lead], 4) == NULL)
		lead++;
	if (lead + 1 == has.n &&
		has.p[lead] == '*') /* "*" alone covers the permission without a pattern too. */
		return lead == 0 || (wants.n >= lead && memcmp(wants.p, has.p, lead) == 0);
	return wants.p != NULL && cgn_str_eq(has, wants);
}

static bool role_covers(const struct role *r, enum identity_action a, struct cgn_str pattern)
{
	for (size_t i = 0; i < r->n_allow; i++)
		if ((r->allow[i].actions >> a & 1) != 0 && pattern_covers(r->allow[i].pattern, pattern))
			return true;
	return false;
}

static bool permission_held(const struct identity_roles *t, uint64_t roles, enum identity_action a,
	struct cgn_str pattern)
{
	for (size_t i = 0; i < t->n; i++)
		if ((roles >> i & 1) != 0 && role_covers(&t->role[i], a, pattern))
			return true;
	return false;
}

bool identity_may_give(const struct identity_roles *t, const struct principal *p, uint64_t bit,
	struct cgn_buf *missing)
{
	const struct role *r = t->role;
	if (is_unlimited(t, p) || ((p->roles | IDENTITY_BIT(AGENT) | IDENTITY_BIT(KVCACHED)) & bit) != 0)
		return true;
	while (r < t->role + t->n && (bit & 1) == 0) {
		bit >>= 1;
		r++;
	}
	for (size_t i = 0; r < t->role + t->n && i < r->n_allow; i++)
		for (int a = 0; a < IDENTITY_ACTIONS; a++) {
			const struct permission *wants = &r->allow[i];
			enum identity_action action = (enum identity_action)a;
			if ((wants->actions >> a & 1) == 0 ||
				permission_held(t, p->roles, action, wants->pattern))
				continue;
			cgn_buf_putz(missing, identity_action_text(action));
			if (wants->pattern.p != NULL)
				cgn_buf_fmt(missing, ":%.*s", CGN_STR_ARG(wants->pattern));
			return false;
		}
	return true;
}

void identity_refusal(const struct identity_roles *t, const struct principal *p, enum identity_action a,
	struct cgn_str object, struct cgn_buf *out)
{
	if (p->kind == IDENTITY_NONE) {
		cgn_buf_fmt(out, "%s is for callers with a certificate, key or token, and none was shown",
			identity_action_text(a));
		return;
	}
	cgn_buf_fmt(out, "%s %.*s (", identity_kind_text(p->kind), CGN_STR_ARG(p->name));
	names_put(t, p->roles, out);
	cgn_buf_fmt(out, ") lacks the permission %s", identity_action_text(a));
	if (object.p != NULL)
		cgn_buf_fmt(out, ":%.*s", (int)(object.n < 128 ? object.n : 128), object.p);
	if (p->kind == IDENTITY_CERT && p->roles == 0)
		cgn_buf_putz(out,
			"; it names no role in this cluster: cgn-ctl pki bootstrap --name CLUSTER --leaf NAME=ROLE makes one that does, and security.legacy_roles = true lets certificates without any role do everything");
}
