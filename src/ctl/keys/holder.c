/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/keys/holder.h"

#include <stdio.h>
#include <string.h>

static const struct {
	const char *name, *roles;
} usual[] = {{"agent", "agent+kvcached"}, {"admin", "operator"}};

static bool is_builtin(struct cgn_str role)
{
	struct cgn_err err;
	CGN_ON_EXIT(identity_roles_unref) struct identity_roles *t = NULL;
	uint64_t bit;
	return cgn_ok(identity_roles_new(NULL, &t, &err)) && identity_role_find(t, role, &bit);
}

/* Return the roles of a certificate of that name. */
static struct cgn_str usual_roles(struct cgn_str name)
{
	for (size_t i = 0; i < CGN_COUNT(usual); i++)
		if (cgn_str_is(name, usual[i].name))
			return cgn_str_of(usual[i].roles);
	return is_builtin(name) ? name : cgn_str_of(usual[0].roles);
}

/* Is a certificate of that name made for the node that the call names, and not for NAME? */
static bool is_of_node(struct cgn_str name)
{
	return cgn_str_is(name, "agent") || cgn_str_is(name, "kvcached");
}

static CGN_RC role_add(struct holder *h, const char *cluster, struct cgn_str role, struct cgn_err *err)
{
	if (!identity_uri_part_ok(role))
		return CGN_FAIL(err, INVALID, "--leaf %s: '%.*s' is not a role", h->file, (int)role.n,
			role.p);
	if (h->n_uris == HOLDER_MAX_ROLES)
		return CGN_FAIL(err, INVALID, "--leaf %s: more than %d roles", h->file, HOLDER_MAX_ROLES);
	if (!is_builtin(role))
		(void)fprintf(stderr,
			"cgn-ctl: %s.pem: role '%.*s' allows nothing until the configuration has [roles.\"%.*s\"]\n",
			h->file, (int)role.n, role.p, (int)role.n, role.p);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf uri = {0};
	identity_uri_put(&(struct identity_uri){cgn_str_of(cluster), role, cgn_str_of(h->node)}, &uri);
	CGN_MUST(cgn_str_copyz(h->uris[h->n_uris++], sizeof h->uris[0], cgn_buf_view(&uri)));
	return CGN_OK;
}

static CGN_RC node_set(struct holder *h, struct cgn_str node, struct cgn_err *err)
{
	if (!identity_uri_part_ok(node) || !cgn_str_copyz(h->node, sizeof h->node, node))
		return CGN_FAIL(err, INVALID,
			"certificate %s: '%.*s' cannot be the name of its node: use letters, digits, '.', '_' and '-', at most %d, and name it with --node or --leaf NAME@NODE",
			h->file, (int)node.n, node.p, HOLDER_NODE_MAX);
	return CGN_OK;
}

bool holder_file_ok(const char *name)
{
	return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL && strcmp(name, "ca") != 0 &&
		strcmp(name, "crl") != 0;
}

CGN_RC holder_read(const char *leaf, const char *cluster, const char *node, struct holder *out,
	struct cgn_err *err)
{
	struct cgn_str at = cgn_str_of(leaf);
	struct cgn_str left = cgn_str_split(&at, '@'), roles = left;
	struct cgn_str name = cgn_str_split(&roles, '=');
	*out = (struct holder){.told = at.n > 0 || roles.n > 0};
	if (!identity_uri_part_ok(cgn_str_of(cluster)))
		return CGN_FAIL(err, INVALID,
			"--name '%.80s' cannot stand in certificates: use letters, digits, '.', '_' and '-'",
			cluster);
	if (!cgn_str_copyz(out->file, sizeof out->file, name))
		return CGN_FAIL(err, INVALID, "--leaf %.80s...: the name is longer than %zu bytes", leaf,
			sizeof out->file - 1);
	if (!holder_file_ok(out->file))
		return CGN_FAIL(err, INVALID,
			"'%s' cannot be the name of a certificate: it must not be 'ca' or 'crl', begin with '.' or contain '/'",
			out->file);
	if (cgn_str_is(roles, "none"))
		return CGN_OK;
	CGN_TRY(node_set(out, at.n > 0 ? at : is_of_node(name) ? cgn_str_of(node) : name, err));
	if (roles.n == 0)
		roles = usual_roles(name);
	while (roles.n > 0)
		CGN_TRY(role_add(out, cluster, cgn_str_split(&roles, '+'), err));
	return CGN_OK;
}

CGN_RC holder_match(const struct pki_info *in, struct holder *h, struct cgn_err *err)
{
	struct identity_uri have, want;
	for (size_t i = 0; i < in->n_names; i++) {
		if (!identity_uri_parse(cgn_str_of(in->names[i]), &have))
			continue;
		if (!h->told) {
			h->n_uris = 0;
			return CGN_OK;
		}
		if (h->n_uris == 0 || !identity_uri_parse(cgn_str_of(h->uris[0]), &want))
			return CGN_OK;
		if (!cgn_str_eq(have.node, want.node) || !cgn_str_eq(have.cluster, want.cluster))
			return CGN_FAIL(err, INVALID,
				"%s.pem is the certificate of node %.*s of cluster %.*s; remove it first to make one for node %.*s of cluster %.*s",
				h->file, (int)have.node.n, have.node.p, (int)have.cluster.n, have.cluster.p,
				(int)want.node.n, want.node.p, (int)want.cluster.n, want.cluster.p);
	}
	return CGN_OK;
}

static void item_put(struct cgn_buf *to, struct cgn_str item)
{
	cgn_buf_fmt(to, "%s%.*s", to->n > 0 ? "," : "", (int)item.n, item.p);
}

void holder_show(const struct pki_info *in, struct cgn_buf *roles, struct cgn_buf *node,
	struct cgn_buf *names)
{
	struct identity_uri u;
	for (size_t i = 0; i < in->n_names; i++) {
		if (!identity_uri_parse(cgn_str_of(in->names[i]), &u)) {
			item_put(names, cgn_str_of(in->names[i]));
			continue;
		}
		item_put(roles, u.role);
		if (node->n == 0)
			item_put(node, u.node);
	}
}
