/* SPDX-License-Identifier: Apache-2.0 */
/* passing: the settings router.extra_routes and router.pass_headers. */
#include "policy/answer/passing/passing.h"
#include "policy/config/config.h"

CGN_RC passing_check_config(const struct config *c, struct cgn_err *err)
{
	const struct config_list *routes = &c->router.extra_routes, *headers = &c->router.pass_headers;
	struct passing_route unused;
	struct cgn_err why;
	for (size_t i = 0; i < routes->n; i++)
		if (!cgn_ok(passing_route_read(routes->v[i], &unused, &why)))
			return CGN_FAIL(err, INVALID, "%s: router.extra_routes: %s",
				config_origin(c, "router.extra_routes"), why.msg);
	for (size_t i = 0; i < headers->n; i++)
		if (!cgn_ok(passing_header_check(headers->v[i], &why)))
			return CGN_FAIL(err, INVALID, "%s: router.pass_headers: %s",
				config_origin(c, "router.pass_headers"), why.msg);
	return CGN_OK;
}
