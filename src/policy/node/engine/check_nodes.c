/* SPDX-License-Identifier: Apache-2.0 */
/* engine: the settings of [engine_nodes]: engines that the router reaches without an agent. */
#include "policy/node/engine/engine.h"

/* The name is the node's id. */
static cgn_rc check_id(const char *name, struct cgn_err *err)
{
	for (const char *s = name; *s != '\0'; s++)
		if (*s <= ' ' || *s > '~' || *s == '/' || *s == '"')
			return CGN_FAIL(err, INVALID,
				"engine_nodes.\"%.40s\": the name is the node's id: visible ASCII characters only, no spaces, quotes and '/'",
				name);
	return CGN_OK;
}

static cgn_rc check_node(const struct config_engine_node *e, struct cgn_err *err)
{
	CGN_TRY(check_id(e->name, err));
	if (e->url == NULL || !config_is_http_url(e->url))
		return CGN_FAIL(err, INVALID,
			"engine_nodes.\"%.40s\".url is %s%.100s%s, must be http://host:port or https://host:port",
			e->name, e->url != NULL ? "\"" : "", e->url != NULL ? e->url : "not set",
			e->url != NULL ? "\"" : "");
	if (e->model != NULL && e->kind == NODE_KIND_AUTO)
		return CGN_FAIL(err, INVALID,
			"engine_nodes.\"%.40s\" has a model and no kind: with a model the engine is not asked for its list, which would tell the kind; set kind",
			e->name);
	if (e->kv_events != NULL && !config_is_zmq_endpoint(e->kv_events))
		return CGN_FAIL(err, INVALID,
			"engine_nodes.\"%.40s\".kv_events is \"%.100s\", must be tcp://host:port or ipc:///path",
			e->name, e->kv_events);
	if (e->kv_events_replay != NULL &&
		(e->kv_events == NULL || !config_is_zmq_endpoint(e->kv_events_replay)))
		return CGN_FAIL(err, INVALID,
			"engine_nodes.\"%.40s\".kv_events_replay must be tcp://host:port or ipc:///path, and needs kv_events, the endpoint of the events themselves",
			e->name);
	return CGN_OK;
}

CGN_RC engine_check_nodes(const struct config *c, struct cgn_err *err)
{
	for (size_t i = 0; i < c->n_engine_nodes; i++)
		CGN_TRY(check_node(&c->engine_nodes[i], err));
	return CGN_OK;
}
