/* SPDX-License-Identifier: Apache-2.0 */
#include "router/permit/permit.h"

#include "joint/audit/audit.h"
#include "policy/auth/auth.h"
#include "policy/identity/identity.h"

/* ---- keys ---- */

static enum gw_step key_refuse(struct gw_req *r, const char *code, const char *message)
{
	return gw_refuse(r, &(struct gw_refusal){401, "authentication_error", code, .reason = "auth"}, "%s",
		message);
}

/* The key of the fields authorization and x-api-key; both may have it. */
static struct cgn_str key_shown(const struct gw_req *r)
{
	struct cgn_str token = auth_bearer(r->identity.authorization);
	return token.n > 0 ? token : r->identity.api_key;
}

/* Is the key in use now? Otherwise refuses. */
static bool key_lives(struct gw_req *r, const struct auth_key *key)
{
	if (key->locked > 0)
		(void)key_refuse(r, "api_key_locked", "the API key is locked");
	else if (key->expires > 0 && cgn_clock_wall_ms() / 1000 >= key->expires)
		(void)key_refuse(r, "api_key_expired", "the API key has expired");
	else
		return true;
	return false;
}

/* Set the roles of the key's holder; without role= the scopes say what the holder may do. */
static bool roles_find(struct gw_req *r, const struct auth_key *key)
{
	r->identity.roles = IDENTITY_BIT(USER);
	if (key->role[0] == '\0')
		return true;
	if (identity_role_find(r->w->rules->roles, cgn_str_of(key->role), &r->identity.roles))
		return true;
	(void)gw_refuse(r, &(struct gw_refusal){403, "permission_error", "unknown_role", .reason = "auth"},
		"the role %s of the API key is not defined here ([roles.\"%s\"])", key->role, key->role);
	return false;
}

/* Set the key's own rates and budgets. */
static bool limits_find(struct gw_req *r, const struct auth_key *key)
{
	if (key->limits[0] == '\0')
		return true;
	struct gw_rates *rates = cgn_arena_get(&r->arena, sizeof *rates);
	struct auth_limits *own = cgn_arena_get(&r->arena, sizeof *own);
	if (rates == NULL || own == NULL || !cgn_ok(auth_limits_parse(cgn_str_of(key->limits), own, NULL))) {
		(void)gw_refuse_no_memory(r, "memory");
		return false;
	}
	const char *currency = budget_set_currency(&own->budgets);
	if (currency != NULL && strcmp(currency, r->w->rules->currency) != 0) {
		(void)gw_refuse(r,
			&(struct gw_refusal){403, "permission_error", "wrong_currency", .reason = "auth"},
			"the API key has a budget in %s, and router.currency is %s", currency,
			r->w->rules->currency);
		return false;
	}
	*rates = r->w->rules->rates;
	if (own->rps_thousandths > 0)
		rates->requests = limit_per_second((double)own->rps_thousandths / 1000, 0);
	if (own->tokens_per_minute > 0)
		rates->tokens = limit_per_minute(own->tokens_per_minute);
	r->identity.rates = rates;
	r->identity.budgets = &own->budgets;
	return true;
}

static enum gw_step scope_check(struct gw_req *r, const struct auth_key *key)
{
	unsigned scope = r->client.route->scope;
	if (scope == ROUTE_ANY_KEY || (key->scopes & scope) != 0)
		return STEP_AGAIN;
	return gw_refuse(r,
		&(struct gw_refusal){403, "permission_error", "insufficient_scope", .reason = "auth"},
		"the API key lacks the scope %s that %s needs", scope == AUTH_CHAT ? "chat" : "embed",
		r->client.route->path);
}

enum gw_step gw_permit_key(struct gw_req *r)
{
	struct auth_keys *keys = r->w->rules->keys;
	struct auth_key key;
	r->identity.scopes = AUTH_CHAT | AUTH_EMBED | AUTH_ADMIN;
	r->identity.tenant = CGN_STR(AUTH_NO_TENANT);
	if (keys == NULL || (r->client.route->scope & ROUTE_OPEN) != 0)
		return STEP_AGAIN;
	if (r->identity.two_keys)
		return gw_refuse(r,
			&(struct gw_refusal){400, "invalid_request_error", "two_api_keys", .reason = "auth"},
			"two different API keys are shown (Authorization, x-api-key): show one");
	struct cgn_str token = key_shown(r);
	if (token.n == 0)
		return key_refuse(r, "invalid_api_key", "an API key is needed: Authorization: Bearer KEY");
	if (!auth_keys_use(keys, token, cgn_clock_wall_ms() / 1000, &key))
		return key_refuse(r, "invalid_api_key", "the API key is not known");
	r->identity.key_id = cgn_arena_strz(&r->arena, cgn_str_of(key.id));
	r->identity.scopes = key.scopes;
	r->identity.tenant = cgn_arena_str(&r->arena, cgn_str_of(auth_key_tenant(&key)));
	r->identity.models = cgn_arena_strz(&r->arena, cgn_str_of(key.models));
	if (r->identity.key_id == NULL || r->identity.tenant.p == NULL || r->identity.models == NULL)
		return gw_refuse_no_memory(r, "memory");
	return key_lives(r, &key) && roles_find(r, &key) && limits_find(r, &key) ? scope_check(r, &key)
										 : STEP_AGAIN;
}

/* ---- models ---- */

bool gw_permit_model(const struct gw_req *r, struct cgn_str name)
{
	const struct gw_identity *who = &r->identity;
	if (who->key_id == NULL)
		return true;
	const struct principal p = {.kind = IDENTITY_KEY,
		.name = cgn_str_of(who->key_id),
		.tenant = who->tenant,
		.roles = who->roles};
	return auth_models_have(cgn_str_of(who->models), name) &&
		authorize(r->w->rules->roles, &p, ACTION_MODEL_USE, name);
}

bool gw_permit_model_noted(const struct gw_req *r, struct cgn_str name)
{
	bool may = gw_permit_model(r, name);
	if (!may)
		audit_note(r->w->shared->audit,
			&(struct audit_event){.action = "model.use",
				.decision = AUDIT_REFUSED,
				.kind = cgn_str_of(identity_kind_text(IDENTITY_KEY)),
				.name = cgn_str_of(r->identity.key_id),
				.tenant = r->identity.tenant,
				.from = r->client.peer,
				.object = name,
				.why = CGN_STR("model_hidden"),
				.request = r->client.id});
	return may;
}
