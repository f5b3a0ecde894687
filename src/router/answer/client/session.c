/* SPDX-License-Identifier: Apache-2.0 */
/* session: the id that a head gives to the client's session: in a header of ours or of a known client, else in a cookie
 * that this router set. account/sessions.c keeps the sessions. */
#include "base/mix/mix.h"
#include "router/answer/client/client_priv.h"

static void header_find(struct gw_req *r, const struct http_head *h)
{
	for (enum session_source from = 0; from < SESSION_SOURCES; from++) {
		const char *name = session_source_header(from);
		struct cgn_str given = name != NULL ? http_head_get(h, name) : (struct cgn_str){NULL, 0};
		if (given.p == NULL || !session_id_is_ok(given))
			continue;
		r->client.session.id = given;
		r->client.session.from = from;
		return;
	}
}

static bool cookie_make(struct gw_req *r, struct cgn_str name)
{
	uint64_t a = mix_splitmix(&r->w->random), b = mix_splitmix(&r->w->random);
	r->client.session.id = cgn_str_of(
		cgn_arena_fmt(&r->arena, "%016llx%016llx", (unsigned long long)a, (unsigned long long)b));
	r->client.set_cookie = cgn_str_of(
		cgn_arena_fmt(&r->arena, "%.*s=%.*s; Path=/; HttpOnly; SameSite=Lax%s", CGN_STR_ARG(name),
			CGN_STR_ARG(r->client.session.id), r->w->rules->session_secure ? "; Secure" : ""));
	return r->client.session.id.p != NULL && r->client.set_cookie.p != NULL;
}

bool gw_session_take(struct gw_req *r, const struct http_head *h)
{
	const struct cgn_str name = r->w->rules->session_cookie;
	header_find(r, h);
	if (r->client.session.id.n == 0 && name.n > 0) {
		struct cgn_str given = http_head_cookie(h, name);
		r->client.session.from = SESSION_FROM_COOKIE;
		if (!session_id_is_ok(given))
			return cookie_make(r, name);
		r->client.session.id = given;
	}
	if (r->client.session.id.n > 0)
		r->client.session.id = cgn_arena_str(&r->arena, r->client.session.id);
	return r->client.session.id.n == 0 || r->client.session.id.p != NULL;
}
