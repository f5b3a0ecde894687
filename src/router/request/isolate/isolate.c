/* SPDX-License-Identifier: Apache-2.0 */
#include "router/request/isolate/isolate.h"

#include "base/json/json.h"
#include "policy/text/prompt/prompt.h"
#include "router/shared/worker/worker.h"

#define NO_NAME "\"\"" /* stands before the salt's member, for a leg that has no memory for its name */

/* Return the digest of the client's own salt; false: it gave none. */
static bool own_read(struct json_val salt, struct digest *out)
{
	struct digest_stream s;
	if (salt.raw.p == NULL || salt.type == JSON_NULL)
		return false;
	digest_stream_start(&s);
	if (salt.type == JSON_STRING)
		json_str_pieces(salt, digest_stream_add, &s);
	else
		digest_stream_add(&s, salt.raw);
	*out = digest_stream_end(&s);
	return true;
}

static struct cgn_str salt_make(struct gw_req *r, const struct digest *own)
{
	const struct gw_rules *rules = r->w->rules;
	struct isolation_owner who = gw_rules_owner(rules, r->identity.tenant);
	char text[ISOLATION_SALT];
	isolation_salt(&rules->isolation.secret, &who, own, text);
	return cgn_arena_str(&r->arena, (struct cgn_str){text, sizeof text});
}

static bool is_of_tenant(const struct gw_req *r)
{
	return r->w->rules->isolation.on && !cgn_str_is(r->identity.tenant, AUTH_NO_TENANT);
}

/* Set the tenant's salt, if it is needed and not known yet. */
static bool owner_set(struct gw_req *r)
{
	if (r->prompt.owner.n == 0 && is_of_tenant(r))
		r->prompt.owner = salt_make(r, NULL);
	return r->prompt.owner.p != NULL || !is_of_tenant(r);
}

bool gw_isolate(struct gw_req *r)
{
	struct gw_prompt *p = &r->prompt;
	struct digest own;
	if (!is_of_tenant(r) || p->salt.n > 0)
		return true;
	bool has_own = own_read(p->facts.salt, &own);
	bool made = owner_set(r);
	p->salt = !made || has_own ? salt_make(r, has_own ? &own : NULL) : p->owner;
	const char *member = made && p->salt.p != NULL
		? cgn_arena_fmt(&r->arena, NO_NAME ",\"cache_salt\":\"%.*s\"", CGN_STR_ARG(p->salt))
		: NULL;
	if (member == NULL)
		return false;
	p->salt_member = cgn_str_of(member + sizeof NO_NAME - 1);
	body_drop_salt(r->body.bytes.p, &p->facts);
	return true;
}

bool gw_isolation_leaks(const struct gw_req *r, const struct view_model *m)
{
	enum gw_route_kind kind = r->client.route->kind;
	bool has_prompt = kind == GW_NATIVE ||
		((kind == GW_RELAY || kind == GW_OLLAMA) && prompt_api_of(r->client.target) != PROMPT_NONE);
	if (!r->w->rules->isolation.strict || r->prompt.salt.n == 0 || !has_prompt)
		return false;
	for (size_t i = 0; m != NULL && i < m->n_ready; i++)
		if (!view_isolates(m, i, r->client.target))
			return true;
	return false;
}

struct cgn_str gw_isolation_name(struct gw_req *r, const struct view_model *m, uint16_t slot,
	struct cgn_str name)
{
	struct cgn_str member = r->prompt.salt_member;
	if (r->prompt.salt.n == 0 || r->prompt.form || !view_salts(m, slot, r->client.target))
		return name;
	char *p = cgn_arena_get(&r->arena, name.n + member.n);
	if (p == NULL)
		return (struct cgn_str){member.p - (sizeof NO_NAME - 1), member.n + sizeof NO_NAME - 1};
	memcpy(p, name.p, name.n);
	memcpy(p + name.n, member.p, member.n);
	return (struct cgn_str){p, name.n + member.n};
}

struct cgn_str gw_isolation_id(struct gw_req *r, struct cgn_str id)
{
	if (!is_of_tenant(r))
		return id;
	if (!owner_set(r) || id.n == 0)
		return (struct cgn_str){NULL, 0};
	return cgn_str_of(
		cgn_arena_fmt(&r->arena, "%.*s/%.*s", CGN_STR_ARG(r->prompt.owner), CGN_STR_ARG(id)));
}
