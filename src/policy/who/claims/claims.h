/* SPDX-License-Identifier: Apache-2.0 */
/* claims: the tenant, the roles and the limits of the holder of an identity provider's token, by the rules of
 * [claims."NAME"], auth.role_claim, auth.tenant_claim and auth.oidc_default_role. Pure; any thread.
 *
 * Roles add up: of every rule that matches, and the values of auth.role_claim that are names of roles. Without any, the
 * holder has auth.oidc_default_role. Tenant and limits are those of the first rule that matches and has some, in the
 * order of the rules' names; else the tenant is the value of auth.tenant_claim, else the holder's account. */
#pragma once
#include "policy/who/auth/auth.h"
#include "policy/who/jwt/jwt.h"

struct config;
struct identity_roles;

#define CLAIMS_ROLES_MAX  16
#define CLAIMS_MAX_VALUES 1024 /* Values of one claim that are looked at. */

struct claims_holder {
	char subject[JWT_SUBJECT_MAX + 1];
	/* A short name for accounts, where keys have their ids: up to 15 characters of the subject, for people, '~' and 16
	 * hexadecimal digits that stand for issuer and subject. No two subjects share one, and none is a key's id. */
	char account[AUTH_ID_MAX + 1];
	char tenant[AUTH_TENANT_MAX + 1];
	char role[CLAIMS_ROLES_MAX][AUTH_ROLE_MAX + 1]; /* Roles that do not exist here may be among them. */
	size_t n_roles;
	char limits[AUTH_LIMITS_MAX + 1]; /* For auth_limits_parse; empty: none. */
	uint64_t expires;                 /* Unix seconds, the clocks' difference included. */
};

struct claims_rules; /* Immutable and counted. */
/* Take the rules of |cfg|, in which auth.oidc_issuer is set. CGN_INVALID names the rule that is wrong. */
CGN_RC claims_rules_new(const struct config *cfg, struct claims_rules **out, struct cgn_err *err);
void claims_rules_ref(struct claims_rules *r);
void claims_rules_unref(struct claims_rules **take);

#define CLAIMS_ISSUER_MAX 512 /* Bytes of an issuer that a copy has room for. */
/* Return auth.oidc_issuer; borrowed. */
struct cgn_str claims_issuer(const struct claims_rules *r);

/* Find out who holds the token |t|, whose signature is right. |audience|: for whom it must be, p NULL: auth.oidc_audience.
 * CGN_UNAUTHENTICATED: jwt_check refuses it. CGN_FORBIDDEN: the holder would have no role, or a tenant whose name cannot
 * be used. */
CGN_RC claims_judge(const struct claims_rules *r, const struct jwt *t, struct cgn_str audience, uint64_t now,
	struct claims_holder *out, struct cgn_err *err);
/* Return the holder's roles that exist in |table|, for principal.roles. Roles of machines are not among them: a token is a
 * person's or a program's, and a provider's claim makes no agent, router or block store. */
uint64_t claims_roles(const struct claims_holder *h, const struct identity_roles *table);
