/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/who/claims/claims.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/codec/codec.h"
#include "base/core/arena.h"
#include "policy/config/config.h"
#include "policy/who/identity/identity.h"

#define ARENA_MAX        ((size_t)4 << 20)
#define VALUE_MAX        1024 /* Bytes of a value that is looked at. */
#define ACCOUNT_READABLE 15   /* Characters of the subject in an account. */
#define ACCOUNT_DIGEST   8    /* Bytes of the digest in it. */

struct rule {
	struct cgn_str name, claim, value, tenant, role, limits; /* Empty: not set. */
};

struct claims_rules {
	atomic_uint refs;
	struct cgn_arena arena;
	bool full; /* There was no memory for a text. */
	struct rule *rule;
	size_t n;
	struct cgn_str role_claim, tenant_claim, default_role; /* Empty: not set. */
	struct jwt_rules jwt;
};

/* ---- rules ---- */

static int rule_order(const void *a, const void *b)
{
	const struct rule *x = a, *y = b;
	return cgn_str_order(x->name, y->name);
}

static struct cgn_str text_keep(struct claims_rules *r, const char *text)
{
	struct cgn_str kept = cgn_arena_str(&r->arena, cgn_str_of(text != NULL ? text : ""));
	r->full = r->full || kept.p == NULL;
	return kept;
}

static CGN_RC rule_check(const struct config_claim *c, struct cgn_err *err)
{
	struct auth_limits limits;
	struct cgn_err why;
	if (c->claim == NULL)
		return CGN_FAIL(err, INVALID,
			"claims.\"%.64s\": claim is missing: the name of a claim, or its path", c->name);
	if (c->tenant == NULL && c->role == NULL && c->limits == NULL)
		return CGN_FAIL(err, INVALID,
			"claims.\"%.64s\": it gives nothing: set tenant, role or limits", c->name);
	if (c->tenant != NULL && !auth_tenant_ok(cgn_str_of(c->tenant)))
		return CGN_FAIL(err, INVALID,
			"claims.\"%.64s\".tenant: a tenant has 1 to %d visible characters, no spaces, and is not \"-\"",
			c->name, AUTH_TENANT_MAX);
	if (c->limits != NULL && !cgn_ok(auth_limits_parse(cgn_str_of(c->limits), &limits, &why)))
		return CGN_FAIL(err, INVALID, "claims.\"%.64s\".limits: %s", c->name, why.msg);
	return CGN_OK;
}

static CGN_RC rules_read(struct claims_rules *r, const struct config *cfg, struct cgn_err *err)
{
	for (size_t i = 0; i < cfg->n_claims; i++)
		CGN_TRY(rule_check(&cfg->claims[i], err));
	r->rule = cgn_arena_get(&r->arena, (cfg->n_claims + 1) * sizeof *r->rule);
	for (size_t i = 0; r->rule != NULL && i < cfg->n_claims; i++) {
		const struct config_claim *c = &cfg->claims[i];
		r->rule[r->n++] =
			(struct rule){text_keep(r, c->name), text_keep(r, c->claim), text_keep(r, c->value),
				text_keep(r, c->tenant), text_keep(r, c->role), text_keep(r, c->limits)};
	}
	r->role_claim = text_keep(r, cfg->auth.role_claim);
	r->tenant_claim = text_keep(r, cfg->auth.tenant_claim);
	r->default_role = text_keep(r, cfg->auth.oidc_default_role);
	r->jwt = (struct jwt_rules){text_keep(r, cfg->auth.oidc_issuer),
		text_keep(r, cfg->auth.oidc_audience), cfg->auth.oidc_clock_skew / CGN_SEC};
	if (r->rule == NULL || r->full)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the rules of [claims]");
	qsort(r->rule, r->n, sizeof *r->rule, rule_order);
	return CGN_OK;
}

CGN_RC claims_rules_new(const struct config *cfg, struct claims_rules **out, struct cgn_err *err)
{
	CGN_ON_EXIT(claims_rules_unref) struct claims_rules *r = CGN_NEW(struct claims_rules);
	r->refs = 1;
	cgn_arena_init(&r->arena, ARENA_MAX);
	CGN_TRY(rules_read(r, cfg, err));
	*out = CGN_TAKE(&r);
	return CGN_OK;
}

void claims_rules_ref(struct claims_rules *r)
{
	atomic_fetch_add(&r->refs, 1);
}

void claims_rules_unref(struct claims_rules **take)
{
	struct claims_rules *r = CGN_TAKE(take);
	if (r == NULL || atomic_fetch_sub(&r->refs, 1) != 1)
		return;
	cgn_arena_fini(&r->arena);
	free(r);
}

struct cgn_str claims_issuer(const struct claims_rules *r)
{
	return r->jwt.issuer;
}

/* ---- values ---- */

/* Call |take| for each value of the claim as a text, until it returns false: a text, a number or true and false, or the
 * elements of an array. */
static void values_each(struct json_val claims, struct cgn_str path,
	bool (*take)(void *arg, struct cgn_str value), void *arg)
{
	struct json_val claim, elem;
	char room[VALUE_MAX];
	size_t n = 0;
	if (!jwt_claim(claims, path, &claim))
		return;
	struct json_iter it = {claim.raw};
	if (claim.type == JSON_ARRAY)
		it = json_iter_of(claim);
	for (bool more = true; more && n < CLAIMS_MAX_VALUES; n++) {
		struct cgn_buf b = cgn_buf_over(room, sizeof room);
		elem = claim;
		if (claim.type == JSON_ARRAY && !json_next_elem(&it, &elem))
			return;
		if (elem.type == JSON_STRING)
			json_str_to(elem, &b);
		else if (elem.type == JSON_NUMBER || elem.type == JSON_BOOL)
			cgn_buf_str(&b, elem.raw);
		if (!b.bad && b.n > 0)
			more = take(arg, cgn_buf_view(&b));
		more = more && claim.type == JSON_ARRAY;
	}
}

struct match {
	struct cgn_str pattern;
	bool found;
};

static bool match_try(void *arg, struct cgn_str value)
{
	struct match *m = arg;
	m->found = m->found || cgn_str_glob(m->pattern, value);
	return !m->found;
}

static bool rule_matches(const struct rule *r, struct json_val claims)
{
	struct match m = {.pattern = r->value};
	values_each(claims, r->claim, match_try, &m);
	return m.found;
}

/* ---- the holder ---- */

/* A holder with more roles than there is room for has the first ones only: fewer rights, never more. */
static bool role_add(void *holder, struct cgn_str name)
{
	struct claims_holder *h = holder;
	if (h->n_roles < CLAIMS_ROLES_MAX && name.n <= AUTH_ROLE_MAX && name.n > 0)
		(void)cgn_str_copyz(h->role[h->n_roles++], AUTH_ROLE_MAX + 1, name);
	return h->n_roles < CLAIMS_ROLES_MAX;
}

struct first {
	char text[VALUE_MAX + 1];
	size_t n;
};

static bool first_take(void *arg, struct cgn_str value)
{
	struct first *f = arg;
	if (cgn_str_copyz(f->text, sizeof f->text, value))
		f->n = value.n;
	return false;
}

static bool is_plain(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
		c == '-' || c == '@';
}

/* The issuer is part of it, so that two providers' subjects differ. */
static void account_make(const struct claims_rules *r, struct claims_holder *h)
{
	struct cgn_buf b = cgn_buf_over(h->account, AUTH_ID_MAX);
	struct digest issuer = digest_of(r->jwt.issuer);
	struct digest who = digest_keyed(&issuer, cgn_str_of(h->subject));
	for (size_t i = 0; h->subject[i] != '\0' && i < ACCOUNT_READABLE; i++)
		cgn_buf_char(&b, is_plain(h->subject[i]) ? h->subject[i] : '_');
	cgn_buf_char(&b, '~');
	hex_put(&b, (struct cgn_str){(const char *)who.b, ACCOUNT_DIGEST});
	h->account[b.n] = '\0';
}

static CGN_RC tenant_of_claim(const struct claims_rules *r, const struct jwt *t, struct claims_holder *h,
	struct cgn_err *err)
{
	struct first f = {.n = 0};
	if (r->tenant_claim.n > 0)
		values_each(t->claims, r->tenant_claim, first_take, &f);
	if (f.n == 0) {
		(void)cgn_str_copyz(h->tenant, sizeof h->tenant, cgn_str_of(h->account));
		return CGN_OK;
	}
	if (!auth_tenant_ok((struct cgn_str){f.text, f.n}) || memchr(f.text, '\0', f.n) != NULL)
		return CGN_FAIL(err, FORBIDDEN,
			"the claim %.*s (auth.tenant_claim) is not a name of a tenant: 1 to %d visible characters, no spaces",
			CGN_STR_ARG(r->tenant_claim), AUTH_TENANT_MAX);
	(void)cgn_str_copyz(h->tenant, sizeof h->tenant, (struct cgn_str){f.text, f.n});
	return CGN_OK;
}

CGN_RC claims_judge(const struct claims_rules *r, const struct jwt *t, struct cgn_str audience, uint64_t now,
	struct claims_holder *out, struct cgn_err *err)
{
	struct jwt_rules rules = r->jwt;
	struct jwt_facts facts;
	struct claims_holder *h = out;
	h->n_roles = 0;
	h->tenant[0] = h->limits[0] = '\0';
	if (audience.p != NULL)
		rules.audience = audience;
	CGN_TRY(jwt_check(t, &rules, now, &facts, err));
	h->expires = facts.expires + rules.skew_s;
	memcpy(h->subject, facts.subject, sizeof h->subject);
	account_make(r, h);
	for (size_t i = 0; i < r->n; i++) {
		const struct rule *rule = &r->rule[i];
		if (!rule_matches(rule, t->claims))
			continue;
		(void)role_add(h, rule->role);
		if (h->tenant[0] == '\0')
			(void)cgn_str_copyz(h->tenant, sizeof h->tenant, rule->tenant);
		if (h->limits[0] == '\0')
			(void)cgn_str_copyz(h->limits, sizeof h->limits, rule->limits);
	}
	if (r->role_claim.n > 0)
		values_each(t->claims, r->role_claim, role_add, h);
	if (h->n_roles == 0)
		(void)role_add(h, r->default_role);
	if (h->n_roles == 0)
		return CGN_FAIL(err, FORBIDDEN,
			"the token gives no role: no rule of [claims] matches, auth.role_claim has none, and auth.oidc_default_role is empty");
	return h->tenant[0] != '\0' ? CGN_OK : tenant_of_claim(r, t, h, err);
}

uint64_t claims_roles(const struct claims_holder *h, const struct identity_roles *table)
{
	const uint64_t machines = IDENTITY_BIT(AGENT) | IDENTITY_BIT(ROUTER) | IDENTITY_BIT(KVCACHED);
	uint64_t roles = 0, bit;
	for (size_t i = 0; i < h->n_roles; i++)
		if (identity_role_find(table, cgn_str_of(h->role[i]), &bit))
			roles |= bit;
	return roles & ~machines;
}
