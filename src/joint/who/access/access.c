/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/who/access/access.h"

#include <pthread.h>
#include <stdlib.h>

#define ACCESS_TAG 0xacce5501U

struct access {
	uint32_t tag;
	struct audit *audit;
	char *cluster;
	pthread_mutex_t lock; /* For |roles|. */
	struct identity_roles *roles;
};

CGN_RC access_new(const struct config *cfg, struct audit *audit, struct access **out, struct cgn_err *err)
{
	struct access *a = CGN_NEW(struct access);
	a->tag = ACCESS_TAG;
	a->audit = audit;
	a->cluster = cgn_str_dupz(cgn_str_of(cfg->cluster.name));
	CGN_MUST(pthread_mutex_init(&a->lock, NULL) == 0);
	cgn_rc rc = identity_roles_new(cfg, &a->roles, err);
	if (!cgn_ok(rc)) {
		access_free(&a);
		return rc;
	}
	*out = a;
	return CGN_OK;
}

CGN_RC access_reload(struct access *a, const struct config *cfg, struct cgn_err *err)
{
	struct identity_roles *fresh = NULL, *old;
	CGN_LIVE(a, ACCESS_TAG);
	CGN_TRY(identity_roles_new(cfg, &fresh, err));
	(void)pthread_mutex_lock(&a->lock);
	old = a->roles;
	a->roles = fresh;
	(void)pthread_mutex_unlock(&a->lock);
	identity_roles_unref(&old);
	return CGN_OK;
}

void access_free(struct access **take)
{
	struct access *a = CGN_TAKE_LIVE(take, ACCESS_TAG);
	if (a == NULL)
		return;
	identity_roles_unref(&a->roles);
	(void)pthread_mutex_destroy(&a->lock);
	free(a->cluster);
	a->tag = 0;
	free(a);
}

struct identity_roles *access_roles(struct access *a)
{
	CGN_LIVE(a, ACCESS_TAG);
	(void)pthread_mutex_lock(&a->lock);
	struct identity_roles *t = a->roles;
	identity_roles_ref(t);
	(void)pthread_mutex_unlock(&a->lock);
	return t;
}

void access_peer(struct access *a, struct cgn_str from, struct cgn_str common_name, struct cgn_str uris,
	struct principal *out)
{
	*out = (struct principal){.from = from, .local = identity_is_local(from)};
	if (common_name.n == 0 && uris.n == 0)
		return;
	struct identity_roles *t = access_roles(a);
	identity_of_certificate(t, a->cluster, common_name, uris, out);
	identity_roles_unref(&t);
}

void access_caller(struct access *a, const struct grpc_call *c, struct principal *out)
{
	access_peer(a, grpc_peer(c), grpc_peer_name(c), grpc_peer_uris(c), out);
}

static void refusal_note(struct access *a, const struct principal *p, enum identity_action action,
	struct cgn_str object, const char *why)
{
	audit_note(a->audit,
		&(struct audit_event){.action = identity_action_text(action),
			.decision = AUDIT_REFUSED,
			.kind = cgn_str_of(identity_kind_text(p->kind)),
			.name = p->name,
			.tenant = p->tenant,
			.from = p->from,
			.object = object,
			.why = cgn_str_of(why)});
}

CGN_RC access_refuse(struct access *a, const struct principal *p, enum identity_action action,
	struct cgn_str object, const char *why, struct cgn_err *err)
{
	CGN_LIVE(a, ACCESS_TAG);
	refusal_note(a, p, action, object, why);
	return CGN_FAIL(err, FORBIDDEN, "%s", why);
}

CGN_RC access_check(struct access *a, const struct principal *p, enum identity_action action,
	struct cgn_str object, struct cgn_err *err)
{
	struct identity_roles *t = access_roles(a);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf why = {.limit = 1024};
	bool may = authorize(t, p, action, object);
	if (!may)
		identity_refusal(t, p, action, object, &why);
	identity_roles_unref(&t);
	if (may)
		return CGN_OK;
	return access_refuse(a, p, action, object, cgn_buf_z(&why), err);
}

CGN_RC access_check_gift(struct access *a, const struct principal *p, struct cgn_str role,
	struct cgn_err *err)
{
	CGN_ON_EXIT(identity_roles_unref) struct identity_roles *t = access_roles(a);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf missing = {.limit = 256}, why = {.limit = 1024};
	uint64_t bit = 0;
	if (!identity_role_find(t, role, &bit))
		return CGN_FAIL(err, INVALID,
			"there is no role \"%.*s\" here (docs/reference/permissions.md)",
			(int)(role.n < 80 ? role.n : 80), role.p);
	if (identity_may_give(t, p, bit, &missing))
		return CGN_OK;
	cgn_buf_fmt(&why,
		"%s %.*s may not invite to the role %.*s, which allows %s: nobody gives what they do not hold",
		identity_kind_text(p->kind), (int)(p->name.n < 200 ? p->name.n : 200), p->name.p,
		CGN_STR_ARG(role), cgn_buf_z(&missing));
	return access_refuse(a, p, ACTION_NODE_INVITE, role, cgn_buf_z(&why), err);
}

bool access_admit(void *gate, struct grpc_call *c, unsigned action)
{
	struct principal who;
	struct cgn_err err;
	CGN_MUST(action < IDENTITY_ACTIONS);
	access_caller(gate, c, &who);
	if (cgn_ok(access_check(gate, &who, (enum identity_action)action, (struct cgn_str){0}, &err)))
		return true;
	grpc_refuse(c, CGN_FORBIDDEN, err.msg);
	return false;
}
