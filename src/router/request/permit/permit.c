/* SPDX-License-Identifier: Apache-2.0 */
#include "router/request/permit/permit.h"

#include "base/crypto/crypto.h"
#include "joint/who/audit/audit.h"
#include "joint/who/oidc/oidc.h"
#include "policy/who/auth/auth.h"
#include "policy/who/claims/kept.h"
#include "policy/who/identity/identity.h"
#include "router/request/calibration/calibration.h"
#include "router/shared/peers/peers.h"

#define TENANT_MAX  64
#define SCOPES_TEXT 32            /* "chat,embed,admin" */
#define KEYS_WAIT   (3 * CGN_SEC) /* Longest time that a request waits for a key of the identity provider. */
#define KEYS_LOOK   (20 * CGN_MSEC) /* Time between two looks. */

/* ---- keys ---- */

static enum gw_step key_refuse(struct gw_req *r, const char *code, const char *message)
{
	return gw_refuse(r,
		&(struct gw_refusal){401, "authentication_error", code, .reason = "auth", .by = GW_BY_KEY},
		"%s", message);
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
	if (identity_role_find(r->w->rules->auth.roles, cgn_str_of(key->role), &r->identity.roles))
		return true;
	(void)gw_refuse(r,
		&(struct gw_refusal){403, "permission_error", "unknown_role", .reason = "auth",
			.by = GW_BY_KEY},
		"the role %s of the API key is not defined here ([roles.\"%s\"])", key->role, key->role);
	return false;
}

/* Set the caller's own rates, budgets and way through cascades. */
static bool limits_find(struct gw_req *r, const char *limits)
{
	if (limits[0] == '\0')
		return true;
	struct gw_rates *rates = cgn_arena_get(&r->arena, sizeof *rates);
	struct auth_limits *own = cgn_arena_get(&r->arena, sizeof *own);
	if (rates == NULL || own == NULL || !cgn_ok(auth_limits_parse(cgn_str_of(limits), own, NULL))) {
		(void)gw_refuse_no_memory(r, "memory");
		return false;
	}
	const char *currency = budget_set_currency(&own->budgets);
	if (currency != NULL && strcmp(currency, r->w->rules->price.currency) != 0) {
		(void)gw_refuse(r,
			&(struct gw_refusal){403, "permission_error", "wrong_currency", .reason = "auth",
				.by = GW_BY_KEY},
			"the caller has a budget in %s, and router.currency is %s", currency,
			r->w->rules->price.currency);
		return false;
	}
	*rates = r->w->rules->rates;
	if (own->rps_thousandths > 0)
		rates->requests = rate_per_second((double)own->rps_thousandths / 1000, 0);
	if (own->tokens_per_minute > 0)
		rates->tokens = rate_per_minute(own->tokens_per_minute);
	r->identity.rates = rates;
	r->identity.budgets = &own->budgets;
	r->identity.cascade = own->cascade;
	return true;
}

static enum gw_step scope_check(struct gw_req *r, unsigned scopes)
{
	unsigned scope = r->client.route->scope;
	if (scope == ROUTE_ANY_KEY || (scopes & scope) != 0)
		return STEP_AGAIN;
	char text[SCOPES_TEXT];
	struct cgn_buf names = cgn_buf_over(text, sizeof text);
	auth_scopes_format(scope, &names);
	return gw_refuse(r,
		&(struct gw_refusal){403, "permission_error", "insufficient_scope", .reason = "auth",
			.by = GW_BY_KEY},
		"the API key lacks the scope %.*s that %s needs", CGN_STR_ARG(names), r->client.route->path);
}

/* Note who calls; false: refused. */
static bool holder_note(struct gw_req *r, enum identity_kind kind, const char *name, const char *tenant,
	const char *models)
{
	r->identity.kind = kind;
	r->identity.name = r->identity.key_id = cgn_arena_strz(&r->arena, cgn_str_of(name));
	r->identity.tenant = cgn_arena_str(&r->arena, cgn_str_of(tenant));
	r->identity.models = cgn_arena_strz(&r->arena, cgn_str_of(models));
	if (gw_peers_own_tenant(r->w->shared->peers, r->identity.tenant)) {
		(void)gw_refuse(r,
			&(struct gw_refusal){403, "permission_error", "tenant_of_a_peer", .reason = "auth",
				.by = GW_BY_KEY},
			"the tenant %.*s has the name of a peer before its slash, as only the requests of that peer have ([peers])",
			CGN_STR_ARG(r->identity.tenant));
		return false;
	}
	if (r->identity.name != NULL && r->identity.tenant.p != NULL && r->identity.models != NULL)
		return true;
	(void)gw_refuse_no_memory(r, "memory");
	return false;
}

/* Does a line of a batch show the token? Then find what stands behind the router's own pass. */
static bool pass_find(const struct gw_req *r, struct cgn_str token, struct cgn_str *rest)
{
	const char *pass = r->w->shared->batch_pass;
	size_t n = strlen(pass);
	if (n == 0 || token.n <= n || !crypto_equal(token.p, pass, n))
		return false;
	*rest = (struct cgn_str){token.p + n, token.n - n};
	return true;
}

/* Is it a line of a batch that the holder of a token made? Then find the field that says who. */
static bool line_find(const struct gw_req *r, struct cgn_str token, struct cgn_str *field)
{
	return pass_find(r, token, field) && field->p[0] == CLAIMS_KEPT_MARK[0];
}

/* Find the key of |token|: the key itself, or what a line of a batch shows: the router's own pass and a key's id. */
static bool key_find(const struct gw_req *r, struct cgn_str token, struct auth_key *out)
{
	struct auth_keys *keys = r->w->rules->auth.keys;
	struct cgn_str id;
	if (keys == NULL)
		return false;
	if (pass_find(r, token, &id))
		return auth_keys_by_id(keys, id, out);
	return auth_keys_use(keys, token, cgn_clock_wall_ms() / 1000, out);
}

static enum gw_step permit_key(struct gw_req *r, struct cgn_str token)
{
	struct auth_key key;
	if (!key_find(r, token, &key))
		return key_refuse(r, "invalid_api_key", "the API key is not known");
	r->identity.scopes = key.scopes;
	if (!holder_note(r, IDENTITY_KEY, key.id, auth_key_tenant(&key), key.models) || !key_lives(r, &key) ||
		!roles_find(r, &key) || !limits_find(r, key.limits))
		return STEP_AGAIN;
	return scope_check(r, key.scopes);
}

/* ---- tokens ---- */

static struct principal principal_of(const struct gw_req *r)
{
	return (struct principal){.kind = r->identity.kind,
		.name = cgn_str_of(r->identity.name),
		.tenant = r->identity.tenant,
		.roles = r->identity.roles};
}

/* The provider's keys are not here: wait for the round that brings them, but not for ever. */
static enum gw_step provider_await(struct gw_req *r, cgn_rc rc, const char *why)
{
	if (rc.code == CGN_NOT_FOUND && cgn_since(cgn_loop_now(r->w->loop), r->client.started) < KEYS_WAIT)
		return gw_park(r, WAIT_PROVIDER, KEYS_LOOK);
	return gw_refuse(r,
		&(struct gw_refusal){503, "server_error", "identity_provider_unavailable", .reason = "auth",
			.by = GW_BY_KEY, .retry_after = 5},
		"%s", why);
}

/* A batch that is made keeps its holder. */
static bool holder_keep(struct gw_req *r, const struct claims_holder *h)
{
	if (r->client.route->kind != GW_BATCH)
		return true;
	struct claims_holder *own = cgn_arena_get(&r->arena, sizeof *own);
	if (own != NULL)
		*own = *h;
	r->identity.holder = own;
	return own != NULL;
}

static enum gw_step permit_holder(struct gw_req *r, const struct claims_holder *h)
{
	const struct identity_roles *table = r->w->rules->auth.roles;
	if (!holder_note(r, IDENTITY_USER, h->subject, h->tenant, ""))
		return STEP_AGAIN;
	r->identity.key_id = cgn_arena_strz(&r->arena, cgn_str_of(h->account));
	if (r->identity.key_id == NULL || !holder_keep(r, h))
		return gw_refuse_no_memory(r, "memory");
	if (!limits_find(r, h->limits))
		return STEP_AGAIN;
	r->identity.roles = claims_roles(h, table);
	r->identity.scopes = AUTH_CHAT | AUTH_EMBED;
	if (r->identity.roles == 0)
		return gw_refuse(r,
			&(struct gw_refusal){403, "permission_error", "unknown_role", .reason = "auth",
				.by = GW_BY_KEY},
			"no role of the token is defined here; the first is %s ([roles.\"%s\"])", h->role[0],
			h->role[0]);
	const struct principal p = principal_of(r);
	if (authorize(table, &p, ACTION_ADMIN_CHANGE, (struct cgn_str){0}))
		r->identity.scopes |= AUTH_ADMIN;
	return STEP_AGAIN;
}

/* A line of a batch that the holder of a token made: |field| says who that was. */
static enum gw_step permit_line(struct gw_req *r, struct cgn_str field)
{
	struct oidc *oidc = r->w->rules->auth.oidc;
	struct claims_kept h;
	char issuer[CLAIMS_ISSUER_MAX + 1] = "";
	if (!claims_kept_unfold(field, &h))
		return key_refuse(r, "invalid_token", "the holder of the batch cannot be read");
	if (oidc != NULL)
		oidc_issuer(oidc, issuer);
	if (strcmp(issuer, h.issuer) != 0)
		return gw_refuse(r,
			&(struct gw_refusal){403, "permission_error", "issuer_not_configured",
				.reason = "auth", .by = GW_BY_KEY},
			"%.100s is no longer auth.oidc_issuer", h.issuer);
	return permit_holder(r, &h.who);
}

static enum gw_step permit_token(struct gw_req *r, struct cgn_str token)
{
	struct oidc *oidc = r->w->rules->auth.oidc;
	struct claims_holder h;
	struct cgn_err err;
	if (oidc_wait_goes_on(oidc, &r->identity.key_wait) &&
		cgn_since(cgn_loop_now(r->w->loop), r->client.started) < KEYS_WAIT)
		return gw_park(r, WAIT_PROVIDER, KEYS_LOOK);
	cgn_rc rc = oidc_judge(oidc, token, (struct cgn_str){0}, &r->identity.key_wait, &h, &err);
	if (rc.code == CGN_FINE)
		return permit_holder(r, &h);
	if (rc.code == CGN_FORBIDDEN)
		return gw_refuse(r,
			&(struct gw_refusal){403, "permission_error", "no_role", .reason = "auth",
				.by = GW_BY_KEY},
			"%s", err.msg);
	if (rc.code == CGN_UNAUTHENTICATED)
		return key_refuse(r, "invalid_token", err.msg);
	return provider_await(r, rc, err.msg);
}

/* ---- requests of another cluster ---- */

static bool via_has(struct cgn_str via, struct cgn_str name)
{
	while (via.p != NULL)
		if (cgn_str_eq(cgn_str_trim(cgn_str_split(&via, ',')), name))
			return true;
	return false;
}

static bool tenant_is_ok(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] <= ' ' || s.p[i] > '~')
			return false;
	return s.n <= TENANT_MAX;
}

/* The peer has judged its client; which of its tenants may come, and whom they count as here, the row of accepts_tenants says. */
static enum gw_step arrival_name(struct gw_req *r)
{
	const struct gw_arrival *from = &r->client.from;
	struct cgn_str theirs = from->tenant.n > 0 ? from->tenant : CGN_STR(AUTH_NO_TENANT);
	const struct gw_peer_tenant *row = gw_peer_arrival(from->peer, theirs);
	if (row == NULL)
		return gw_refuse(r,
			&(struct gw_refusal){421, "permission_error", "tenant_not_accepted",
				.param = "X-Cgn-Tenant", .reason = "federation"},
			"requests of the tenant %.*s of %s are not answered here (peers.\"%s\".accepts_tenants)",
			CGN_STR_ARG(theirs), from->peer->name, from->peer->name);
	const char *name = cgn_arena_fmt(&r->arena, "%s/%.*s", from->peer->name, CGN_STR_ARG(theirs));
	if (name == NULL)
		return gw_refuse_no_memory(r, "memory");
	r->identity.tenant = row->ours.n > 0 ? row->ours : cgn_str_of(name);
	r->identity.label = row->label;
	return STEP_AGAIN;
}

static enum gw_step arrival_refuse(struct gw_req *r, const char *field, const char *why)
{
	return gw_refuse(r,
		&(struct gw_refusal){400, "invalid_request_error", "invalid_header", .param = field,
			.reason = "federation"},
		"%s", why);
}

enum gw_step gw_permit_peer(struct gw_req *r)
{
	const struct gw_arrival *from = &r->client.from;
	if (from->peer == NULL || from->is_router)
		return STEP_AGAIN;
	r->identity.kind = IDENTITY_CERT; /* for the audit log */
	r->identity.name = from->holder;
	return gw_refuse(r,
		&(struct gw_refusal){403, "permission_error", "not_a_router", .reason = "federation"},
		"the certificate of %.200s is of the CA of %s, but no URI name of it has the role router (cognitora://CLUSTER/router/NODE): only routers of a peer send requests",
		from->holder, from->peer->name);
}

/* The peer's certificate is its key. Other routes than those for requests have no tenant. */
static enum gw_step permit_arrival(struct gw_req *r)
{
	const struct gw_arrival *from = &r->client.from;
	const char *own = r->w->shared->peers->cluster;
	const struct gw_refusal loop = {508, "server_error", "federation_loop", .reason = "federation"};
	r->identity.scopes = AUTH_CHAT | AUTH_EMBED;
	r->identity.tenant = CGN_STR(AUTH_NO_TENANT);
	if (r->client.route->kind != GW_RELAY && r->client.route->kind != GW_HEALTHZ &&
		r->client.route->kind != GW_SUMMARY)
		return gw_refuse(r,
			&(struct gw_refusal){404, "invalid_request_error", "not_found",
				.reason = "federation"},
			"%.*s is not for peers", (int)(r->client.path.n < 200 ? r->client.path.n : 200),
			r->client.path.p);
	if (from->twice != NULL)
		return arrival_refuse(r, from->twice, "a field stands in the head several times");
	if (!tenant_is_ok(from->tenant))
		return arrival_refuse(r, "X-Cgn-Tenant", "X-Cgn-Tenant is not a tenant's name");
	if (r->client.route->kind == GW_RELAY && from->hops == 0)
		return arrival_refuse(r, "X-Cgn-Via",
			"X-Cgn-Via is missing: a router that sends a request on names its cluster there");
	if (r->client.route->kind == GW_RELAY)
		(void)arrival_name(r);
	if (r->state != GW_AUTH)
		return STEP_AGAIN;
	if (via_has(from->via, cgn_str_of(own)))
		return gw_refuse(r, &loop,
			"the request has left a cluster named %s already (X-Cgn-Via), which is the name of this one (cluster.name)",
			own);
	if (from->hops > r->w->rules->away_hops)
		return gw_refuse(r, &loop,
			"the request has left %u clusters, and may leave %u (router.federation.max_hops)",
			from->hops, r->w->rules->away_hops);
	return STEP_AGAIN;
}

/* Is it a prompt that this router asks again, to calibrate a cascade? The client's request was permitted. */
static bool own_find(struct gw_req *r)
{
	struct cgn_str tenant;
	if (!gw_calibration_is_own(r->w->shared->calibrations, auth_bearer(r->identity.authorization),
		    &tenant))
		return false;
	r->identity.own = true;
	r->identity.scopes = AUTH_CHAT | AUTH_EMBED;
	r->identity.tenant = cgn_arena_str(&r->arena, tenant);
	if (r->identity.tenant.p == NULL)
		(void)gw_refuse_no_memory(r, "memory");
	return true;
}

enum gw_step gw_permit_key(struct gw_req *r)
{
	if (r->client.from.peer != NULL)
		return permit_arrival(r);
	const struct gw_rules *rules = r->w->rules;
	if (own_find(r))
		return STEP_AGAIN;
	r->identity.scopes = AUTH_CHAT | AUTH_EMBED | AUTH_ADMIN;
	r->identity.tenant = CGN_STR(AUTH_NO_TENANT);
	if (!rules->auth.asks || (r->client.route->scope & ROUTE_OPEN) != 0)
		return STEP_AGAIN;
	if (r->identity.two_keys)
		return gw_refuse(r,
			&(struct gw_refusal){400, "invalid_request_error", "two_api_keys", .reason = "auth",
				.by = GW_BY_KEY},
			"two different API keys are shown (Authorization, x-api-key): show one");
	struct cgn_str token = key_shown(r);
	if (token.n == 0)
		return key_refuse(r, "invalid_api_key", "an API key is needed: Authorization: Bearer KEY");
	struct cgn_str field;
	if (line_find(r, token, &field))
		return permit_line(r, field);
	return rules->auth.oidc != NULL && jwt_looks_like(token) ? permit_token(r, token)
								 : permit_key(r, token);
}

/* ---- the audit log ---- */

static void refusal_note(const struct gw_req *r, const char *action, struct cgn_str object, const char *why)
{
	audit_note(r->w->shared->audit,
		&(struct audit_event){.action = action,
			.decision = AUDIT_REFUSED,
			.kind = cgn_str_of(identity_kind_text(r->identity.kind)),
			.name = cgn_str_of(r->identity.name),
			.tenant = r->identity.tenant,
			.from = r->client.peer,
			.object = object,
			.why = cgn_str_of(why),
			.request = r->client.id,
			.own_line = cgn_str_starts(cgn_str_of(action), "hook.")});
}

void gw_permit_note(const struct gw_req *r, const char *action, const char *why)
{
	char object[512];
	struct cgn_str rest = r->client.path, path = cgn_str_split(&rest, '?');
	(void)snprintf(object, sizeof object, "%.*s %.*s", CGN_STR_ARG(r->client.method), CGN_STR_ARG(path));
	refusal_note(r, action, cgn_str_of(object), why);
}

/* ---- models ---- */

bool gw_permit_model(const struct gw_req *r, struct cgn_str name)
{
	const struct gw_identity *who = &r->identity;
	if (r->client.from.peer != NULL)
		return gw_peer_may_ask(r->client.from.peer, name);
	if (who->key_id == NULL)
		return true;
	const struct principal p = principal_of(r);
	return auth_models_have(cgn_str_of(who->models), name) &&
		authorize(r->w->rules->auth.roles, &p, ACTION_MODEL_USE, name);
}

bool gw_permit_change(const struct gw_req *r, struct cgn_str model)
{
	const struct gw_identity *who = &r->identity;
	if (r->client.from.peer != NULL)
		return false;
	if (who->key_id == NULL)
		return true;
	const struct principal p = principal_of(r);
	return authorize(r->w->rules->auth.roles, &p, ACTION_MODEL_CHANGE, model);
}

struct cgn_str gw_permit_default(const struct gw_req *r)
{
	const struct cgn_str none = {NULL, 0}, name = r->w->rules->default_model;
	return name.n > 0 && r->client.from.peer == NULL && gw_permit_model(r, name) ? name : none;
}

bool gw_permit_model_noted(const struct gw_req *r, struct cgn_str name)
{
	bool may = gw_permit_model(r, name);
	if (!may)
		refusal_note(r, "model.use", name, "model_hidden");
	return may;
}

uint64_t gw_permit_holder(const struct gw_req *r)
{
	struct cgn_str name =
		r->identity.key_id != NULL ? cgn_str_of(r->identity.key_id) : r->identity.tenant;
	return route_hash(name.p, name.n);
}
