/* SPDX-License-Identifier: Apache-2.0 */
/* identity.c: principals: their certificates, addresses and words. */
#include "policy/who/identity/identity.h"

#include <string.h>

#define PART_MAX  128
#define URI_BEGIN "cognitora://"

static const struct {
	const char *text;
} action_rows[] = {
#define ACTION(id, text, own, help) [ACTION_##id] = {text},
#include "policy/who/identity/actions.def"
#undef ACTION
};

const char *identity_action_text(enum identity_action a)
{
	return action_rows[a].text;
}

bool identity_action_find(struct cgn_str text, enum identity_action *out)
{
	for (size_t i = 0; i < CGN_COUNT(action_rows); i++)
		if (cgn_str_is(text, action_rows[i].text)) {
			*out = (enum identity_action)i;
			return true;
		}
	return false;
}

const char *identity_kind_text(enum identity_kind k)
{
	static const char *const texts[] = {[IDENTITY_NONE] = "address",
		[IDENTITY_CERT] = "certificate",
		[IDENTITY_KEY] = "key",
		[IDENTITY_USER] = "user"};
	return texts[k];
}

/* ---- certificates ---- */

static bool part_char_ok(char ch)
{
	return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') ||
		ch == '.' || ch == '_' || ch == '-';
}

bool identity_uri_part_ok(struct cgn_str part)
{
	for (size_t i = 0; i < part.n; i++)
		if (!part_char_ok(part.p[i]))
			return false;
	return part.n > 0 && part.n <= PART_MAX;
}

bool identity_uri_parse(struct cgn_str uri, struct identity_uri *out)
{
	const size_t begin = sizeof URI_BEGIN - 1;
	if (uri.n > IDENTITY_URI_MAX || !cgn_str_starts(uri, URI_BEGIN))
		return false;
	struct cgn_str rest = {uri.p + begin, uri.n - begin};
	struct identity_uri u;
	u.cluster = cgn_str_split(&rest, '/');
	u.role = cgn_str_split(&rest, '/');
	u.node = rest; /* A part must not have a slash, so a further one is refused. */
	if (!identity_uri_part_ok(u.cluster) || !identity_uri_part_ok(u.role) ||
		!identity_uri_part_ok(u.node))
		return false;
	*out = u;
	return true;
}

void identity_uri_put(const struct identity_uri *u, struct cgn_buf *out)
{
	cgn_buf_fmt(out, URI_BEGIN "%.*s/%.*s/%.*s", CGN_STR_ARG(u->cluster), CGN_STR_ARG(u->role),
		CGN_STR_ARG(u->node));
}

void identity_of_certificate(const struct identity_roles *t, const char *cluster, struct cgn_str common_name,
	struct cgn_str uris, struct principal *out)
{
	struct identity_uri first = {0}, u;
	out->kind = IDENTITY_CERT;
	out->name = common_name;
	out->roles = 0;
	out->legacy = true;
	while (uris.n > 0) {
		uint64_t bit;
		struct cgn_str one = cgn_str_split(&uris, ' ');
		if (!identity_uri_parse(one, &u))
			continue;
		out->legacy = false;
		if (!cgn_str_is(u.cluster, cluster))
			continue;
		if (first.node.n > 0 && !cgn_str_eq(first.node, u.node)) {
			out->roles = 0; /* A certificate that names two nodes names neither. */
			return;
		}
		first = u;
		out->name = u.node;
		if (identity_role_find(t, u.role, &bit))
			out->roles |= bit;
	}
}

bool identity_uris_name(struct cgn_str uris, const char *role)
{
	struct identity_uri first = {0}, u;
	bool found = false;
	while (uris.n > 0) {
		if (!identity_uri_parse(cgn_str_split(&uris, ' '), &u))
			continue;
		if (first.node.n > 0 &&
			(!cgn_str_eq(first.node, u.node) || !cgn_str_eq(first.cluster, u.cluster)))
			return false;
		first = u;
		found = found || cgn_str_is(u.role, role);
	}
	return found;
}

/* ---- addresses ---- */

bool identity_is_local(struct cgn_str addr)
{
	return cgn_str_starts(addr, "127.") || cgn_str_starts(addr, "[::1]:") ||
		cgn_str_starts(addr, "[::ffff:127.") || cgn_str_starts(addr, "localhost:") ||
		cgn_str_starts(addr, "unix:") || cgn_str_is(addr, "unix");
}
