/* SPDX-License-Identifier: Apache-2.0 */
/* access: the gate of a program's ports: who calls, may they, and a line in the audit log when they may not. The rules
 * are policy/who/identity's. Any thread. */
#pragma once
#include "io/wire/grpc/grpc.h"
#include "joint/who/audit/audit.h"
#include "policy/config/config.h"
#include "policy/who/identity/identity.h"

struct access;
/* |audit| may be NULL, and lives longer. CGN_INVALID: [roles] of |cfg| is wrong. */
CGN_RC access_new(const struct config *cfg, struct audit *audit, struct access **out, struct cgn_err *err);
/* Use the roles of |cfg| from now on. On failure the old ones stay. */
CGN_RC access_reload(struct access *a, const struct config *cfg, struct cgn_err *err);
void access_free(struct access **take);
/* Return a reference to the roles of now; release it with identity_roles_unref. */
struct identity_roles *access_roles(struct access *a);

/* Describe the caller of |c|, or the peer that showed a certificate of that name and those URI names (empty: none). The
 * texts are borrowed from them. */
void access_caller(struct access *a, const struct grpc_call *c, struct principal *out);
void access_peer(struct access *a, struct cgn_str from, struct cgn_str common_name, struct cgn_str uris,
	struct principal *out);
/* May |p| do |action| with |object| (.p NULL: with some)? CGN_FORBIDDEN says why not, and is noted in the audit log. */
CGN_RC access_check(struct access *a, const struct principal *p, enum identity_action action,
	struct cgn_str object, struct cgn_err *err);
/* Note in the audit log that |p| may not do |action| with |object|, and return CGN_FORBIDDEN with |why|. */
CGN_RC access_refuse(struct access *a, const struct principal *p, enum identity_action action,
	struct cgn_str object, const char *why, struct cgn_err *err);
/* May |p| let another holder have |role| (identity_may_give)? CGN_INVALID: there is no such role; CGN_FORBIDDEN says
 * why not, and is noted in the audit log. */
CGN_RC access_check_gift(struct access *a, const struct principal *p, struct cgn_str role,
	struct cgn_err *err);
/* For grpc_server_cfg.admit: |gate| is the struct access, |action| an enum identity_action. */
bool access_admit(void *gate, struct grpc_call *c, unsigned action);
