/* SPDX-License-Identifier: Apache-2.0 */
/* session: the client's session, which is used to choose nodes and for nothing else: X-Cgn-Session, else a
 * cookie that this router set. */
#include "base/mix/mix.h"
#include "router/client/client_priv.h"

#define COOKIE_MAX 64 /* Bytes of a cookie's value; the router's own have 32 */

/* Return the value of the first cookie |name| in "name=value; name=value" (RFC 6265); {NULL, 0}: none. */
static struct cgn_str cookie_find(struct cgn_str field, struct cgn_str name)
{
	while (field.p != NULL) {
		struct cgn_str value = cgn_str_trim(cgn_str_split(&field, ';'));
		struct cgn_str key = cgn_str_split(&value, '=');
		if (value.p != NULL && cgn_str_eq(cgn_str_trim(key), name))
			return cgn_str_trim(value);
	}
	return (struct cgn_str){NULL, 0};
}

static struct cgn_str cookie_of(const struct http_head *h, struct cgn_str name)
{
	struct cgn_str v = {NULL, 0};
	for (size_t i = 0; i < h->n_fields && v.n == 0; i++)
		if (cgn_str_is(h->fields[i].name, "cookie"))
			v = cookie_find(h->fields[i].value, name);
	return v.n <= COOKIE_MAX ? v : (struct cgn_str){NULL, 0};
}

bool gw_session_take(struct gw_req *r, const struct http_head *h)
{
	const struct cgn_str name = r->w->rules->session_cookie;
	struct cgn_str given = http_head_get(h, "x-cgn-session");
	if (given.n == 0 && name.n > 0)
		given = cookie_of(h, name);
	if (given.n > 0) {
		r->client.session = cgn_arena_str(&r->arena, given);
		return r->client.session.p != NULL;
	}
	if (name.n == 0)
		return true;
	uint64_t a = mix_splitmix(&r->w->random), b = mix_splitmix(&r->w->random);
	r->client.session = cgn_str_of(
		cgn_arena_fmt(&r->arena, "%016llx%016llx", (unsigned long long)a, (unsigned long long)b));
	r->client.set_cookie = cgn_str_of(
		cgn_arena_fmt(&r->arena, "%.*s=%.*s; Path=/; HttpOnly; SameSite=Lax%s", CGN_STR_ARG(name),
			CGN_STR_ARG(r->client.session), r->w->rules->session_secure ? "; Secure" : ""));
	return r->client.session.p != NULL && r->client.set_cookie.p != NULL;
}
