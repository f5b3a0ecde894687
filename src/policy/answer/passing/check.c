/* SPDX-License-Identifier: Apache-2.0 */
/* passing: the settings router.extra_routes and router.pass_headers. */
#include <string.h>

#include "policy/answer/passing/passing.h"
#include "policy/config/config.h"

/* The first route that matches a request holds: one behind a route that matches all its paths would have no effect. */
static CGN_RC hidden_check(const struct config_list *routes, size_t at, const struct passing_route *route,
	struct cgn_err *err)
{
	struct passing_route before;
	for (size_t i = 0; i < at; i++) {
		CGN_TRY(passing_route_read(routes->v[i], &before, err));
		if (strcmp(before.method, route->method) == 0 &&
			passing_pattern_covers(before.path, cgn_str_of(route->path)))
			return CGN_FAIL(err, INVALID,
				"\"%.100s\" would have no effect behind \"%.100s\", which matches all its paths: give one of them only, or the narrower one first",
				routes->v[at], routes->v[i]);
	}
	return CGN_OK;
}

static CGN_RC route_check(const struct config_list *routes, size_t at, struct cgn_err *err)
{
	struct passing_route route;
	CGN_TRY(passing_route_read(routes->v[at], &route, err));
	return hidden_check(routes, at, &route, err);
}

CGN_RC passing_check_config(const struct config *c, struct cgn_err *err)
{
	const struct config_list *routes = &c->router.extra_routes, *headers = &c->router.pass_headers;
	struct cgn_err why;
	for (size_t i = 0; i < routes->n; i++)
		if (!cgn_ok(route_check(routes, i, &why)))
			return CGN_FAIL(err, INVALID, "%s: router.extra_routes: %s",
				config_origin(c, "router.extra_routes"), why.msg);
	for (size_t i = 0; i < headers->n; i++)
		if (!cgn_ok(passing_header_check(headers->v[i], &why)))
			return CGN_FAIL(err, INVALID, "%s: router.pass_headers: %s",
				config_origin(c, "router.pass_headers"), why.msg);
	return CGN_OK;
}
