/* SPDX-License-Identifier: Apache-2.0 */
#include "router/request/route/route.h"

#include "base/codec/codec.h"
#include "io/wire/http/head.h"
#include "policy/text/prompt/prompt.h"
#include "policy/who/auth/auth.h"

#define FOR_MAX 64

static const struct gw_route_row rows[] = {
#define ROUTE(method, path, kind, scope)      {method, path, GW_##kind, scope},
#define ROUTE_ONCE(method, path, kind, scope) {method, path, GW_##kind, scope, .once = true},
#include "router/request/route/routes.def"
#undef ROUTE_ONCE
#undef ROUTE
};
const struct gw_route_rows gw_routes = {rows, CGN_COUNT(rows)};

bool gw_route_may_lack(enum gw_route_kind kind, struct cgn_str target)
{
	return kind == GW_MEDIA || kind == GW_COUNT || kind == GW_NATIVE || kind == GW_ABOUT ||
		(kind == GW_RELAY && prompt_api_of(target) == PROMPT_NONE);
}

bool gw_route_takes_batch(struct cgn_str path)
{
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (rows[i].kind == GW_RELAY && cgn_str_starts(path, "/v1/") &&
			cgn_str_is(path, rows[i].path))
			return true;
	return false;
}

const struct gw_route_row *gw_route_meant(struct cgn_str path, const char *fallback)
{
	char room[FOR_MAX];
	struct cgn_str value = http_query_get(path, "for"), meant = cgn_str_of(fallback);
	if (value.p != NULL)
		meant = (struct cgn_str){room, value.n < FOR_MAX ? percent_get(room, value) : 0};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (rows[i].kind == GW_RELAY && cgn_str_is(meant, rows[i].path) &&
			prompt_api_of(meant) != PROMPT_NONE)
			return &rows[i];
	return NULL;
}
