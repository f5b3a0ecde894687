/* SPDX-License-Identifier: Apache-2.0 */
/* session: who of the clients this is, for choosing alone: X-Cgn-Session if it says so, else a cookie that
 * this router gave it. Sessions say nothing of who may do what. */
#include "base/mix/mix.h"
#include "router/request/gateway.h"

#define COOKIE_MAX 64 /* bytes of a value; ours have 32 */

/* RFC 6265: "name=value; name=value", the first of that name. {NULL, 0}: none. */
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
		r->session = cgn_arena_str(&r->arena, given);
		return r->session.p != NULL;
	}
	if (name.n == 0)
		return true;
	uint64_t a = mix_splitmix(&r->w->ids), b = mix_splitmix(&r->w->ids);
	r->session = cgn_str_of(
		cgn_arena_fmt(&r->arena, "%016llx%016llx", (unsigned long long)a, (unsigned long long)b));
	r->set_cookie = cgn_str_of(cgn_arena_fmt(&r->arena, "%.*s=%.*s; Path=/; HttpOnly; SameSite=Lax%s",
		CGN_STR_ARG(name), CGN_STR_ARG(r->session), r->w->rules->session_secure ? "; Secure" : ""));
	return r->session.p != NULL && r->set_cookie.p != NULL;
}

size_t gw_session_fields(const struct gw_req *r, struct http_field *out)
{
	if (r->set_cookie.n == 0)
		return 0;
	out[0] = (struct http_field){CGN_STR("set-cookie"), r->set_cookie};
	return 1;
}
