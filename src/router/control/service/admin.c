/* SPDX-License-Identifier: Apache-2.0 */
/* admin: the routes of the admin port. Documents are in documents.def, the other answers in files of their own. */
#include "joint/daemon/page/page.h"
#include "router/control/service/documents.h"

const struct svc_admin_route router_admin_routes[] = {
#define DOCUMENT(id, path, action, Type, type, select, help) {"GET", path, router_document_get, action},
#include "policy/node/proto/documents.def"
#undef DOCUMENT
	{"POST", "/nodes/*/cordon", router_admin_order, ACTION_NODE_CORDON},
	{"POST", "/nodes/*/uncordon", router_admin_order, ACTION_NODE_CORDON},
	{"GET", "/page/*", page_get, ACTION_STATUS_READ},
	{"POST", "/playground/*", router_admin_play, ACTION_PLAYGROUND_USE},
	{"GET", "/explain/*", router_admin_explain, ACTION_EXPLAIN_READ}};
const size_t router_n_admin_routes = CGN_COUNT(router_admin_routes);
