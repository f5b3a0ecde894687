/* SPDX-License-Identifier: Apache-2.0 */
/* session: the client's session, which is used to choose nodes and for nothing else: X-Cgn-Session, else a
 * cookie that this router set. */
#include "base/mix/mix.h"
#include "router/client/client_priv.h"

#define COOKIE_MAX 64 /* Bytes of a cookie's value; the router's own have 32 */

bool gw_session_take(struct gw_req *r, const struct http_head *h)
{
	const struct cgn_str name = r->w->rules->session_cookie;
	struct cgn_str given = http_head_get(h, "x-cgn-session");
	if (given.n == 0 && name.n > 0)
		given = http_head_cookie(h, name);
	if (given.n > COOKIE_MAX)
		given = (struct cgn_str){NULL, 0};
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
