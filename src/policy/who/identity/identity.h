/* SPDX-License-Identifier: Apache-2.0 */
/* identity: callers, their roles and their rights. Every port of every program asks authorize(). Pure; any
 * thread.
 *
 * A role is a set of permissions, a permission an action with a pattern of objects: "model.use:llama-*". Without a
 * pattern it holds for every object. "node.*" and "*" stand for several actions. The roles of roles.def exist always;
 * [roles."NAME"] adds others.
 *
 * A certificate names its holder's roles in URI names (RFC 5280, 4.2.1.6): cognitora://CLUSTER/ROLE/NODE, one for each
 * role. All have the same cluster and node; otherwise none counts. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

struct config;

enum identity_action {
#define ACTION(id, text, own, help) ACTION_##id,
#include "policy/who/identity/actions.def"
#undef ACTION
	IDENTITY_ACTIONS
};
const char *identity_action_text(enum identity_action a);
bool identity_action_find(struct cgn_str text, enum identity_action *out);

enum identity_kind {
	IDENTITY_NONE, /* Showed nothing. */
	IDENTITY_CERT, /* A certificate that the cluster's CA signed. */
	IDENTITY_KEY,  /* An API key. */
	IDENTITY_USER  /* A token of an identity provider. */
};
const char *identity_kind_text(enum identity_kind k); /* "certificate" */

/* The caller. The texts are borrowed. */
struct principal {
	enum identity_kind kind;
	/* Node or, without a role, the common name of a certificate; id of a key; subject of a user. */
	struct cgn_str name;
	struct cgn_str tenant; /* Empty: none. */
	struct cgn_str from;   /* Address. */
	uint64_t roles;        /* Bit i: role i of the table. */
	bool local;            /* Came from this machine: its address is loopback, or it is a Unix socket. */
	bool legacy;           /* Showed a certificate without URI names of cognitora. */
};

/* ---- roles ---- */
#define IDENTITY_MAX_ROLES  64
#define IDENTITY_MAX_ALLOWS 64 /* Permissions of a role. */
#define IDENTITY_ROLE_MAX   64 /* Bytes of a role's name. */
struct identity_roles;         /* Immutable and counted. */
enum {
#define ROLE(id, name, allow, help) IDENTITY_ROLE_##id,
#include "policy/who/identity/roles.def"
#undef ROLE
	IDENTITY_BUILTIN_ROLES
};
#define IDENTITY_BIT(role) (UINT64_C(1) << IDENTITY_ROLE_##role)
/* Make the table of roles.def, [roles."NAME"], security.insecure and security.legacy_roles. CGN_INVALID names the role
 * and the permission that is wrong. |cfg| may be NULL: the roles of roles.def only. */
CGN_RC identity_roles_new(const struct config *cfg, struct identity_roles **out, struct cgn_err *err);
void identity_roles_ref(struct identity_roles *t);
void identity_roles_unref(struct identity_roles **take);
/* Return the name of role |i|, the role of bit |i|; NULL behind the last one. Borrowed from |t|. */
const char *identity_role_name(const struct identity_roles *t, size_t i);
bool identity_role_find(const struct identity_roles *t, struct cgn_str name, uint64_t *bit);

/* ---- the decision ---- */
/* May |p| do |a| with |object|? |object|.p NULL: with some object. Who showed nothing may do everything from this
 * machine, and from elsewhere with security.insecure; a port that asks for credentials (the gateway with auth.enabled)
 * must not come here without them. A certificate without a role may do everything with security.legacy_roles. */
bool authorize(const struct identity_roles *t, const struct principal *p, enum identity_action a,
	struct cgn_str object);
/* Append the sentence of a refusal: who, what, and what to do. */
void identity_refusal(const struct identity_roles *t, const struct principal *p, enum identity_action a,
	struct cgn_str object, struct cgn_buf *out);

/* May |p|, who may node.invite, let another holder have the role of |bit|? Only if |p| has the role, or each of its
 * permissions, for the same objects or for more. node.invite itself covers agent and kvcached, the
 * roles of machines that serve. False: |missing| gets the first permission that |p| lacks. */
bool identity_may_give(const struct identity_roles *t, const struct principal *p, uint64_t bit,
	struct cgn_buf *missing);

/* ---- certificates ---- */
#define IDENTITY_URI_MAX 512 /* Bytes of one URI name. */
struct identity_uri {
	struct cgn_str cluster, role, node; /* Borrowed. */
};
/* Read cognitora://CLUSTER/ROLE/NODE. Each part has 1 to 128 characters of A-Z a-z 0-9 . _ - only, so that nothing needs
 * an escape; false for anything else. */
bool identity_uri_parse(struct cgn_str uri, struct identity_uri *out);
/* May |part| stand in such a URI? */
bool identity_uri_part_ok(struct cgn_str part);
/* Append the URI; the parts are ok. */
void identity_uri_put(const struct identity_uri *u, struct cgn_buf *out);
/* Fill in kind, name and roles of the holder of a certificate: |common_name| and |uris|, its URI names with a space
 * between them. Unknown roles and URIs of other clusters do not count. */
void identity_of_certificate(const struct identity_roles *t, const char *cluster, struct cgn_str common_name,
	struct cgn_str uris, struct principal *out);

/* Does a certificate of another cluster name the role? |uris|: its URI names with a space between them. One has the role
 * |role|, and all of cognitora have the same cluster and node. Which cluster that is, the authority says that signed it. */
bool identity_uris_name(struct cgn_str uris, const char *role);

/* ---- addresses ---- */
/* Is the address of a listener ("host:port", "unix:/path") or of a peer one of this machine only? */
bool identity_is_local(struct cgn_str addr);
