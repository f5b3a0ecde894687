/* SPDX-License-Identifier: Apache-2.0 */
/* inferencepool: the settings of [inference_pools]. */
#include "policy/config/config.h"
#include "policy/fleet/inferencepool/inferencepool.h"

static cgn_rc check_pool(const struct config_inference_pool *p, struct cgn_err *err)
{
	const char *name = p->pool != NULL ? p->pool : p->name;
	if (name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-.")] != '\0')
		return CGN_FAIL(err, INVALID,
			"inference_pools.\"%.40s\": \"%.80s\" is not a name of an InferencePool: a to z, 0 to 9, '-' and '.'",
			p->name, name);
	if (p->namespace != NULL &&
		p->namespace[strspn(p->namespace, "abcdefghijklmnopqrstuvwxyz0123456789-")] != '\0')
		return CGN_FAIL(err, INVALID,
			"inference_pools.\"%.40s\".namespace is \"%.63s\": a to z, 0 to 9 and '-'", p->name,
			p->namespace);
	if (p->model != NULL && p->kind == NODE_KIND_AUTO)
		return CGN_FAIL(err, INVALID,
			"inference_pools.\"%.40s\" has a model and no kind: with a model the engines are not asked for their lists, which would tell the kind; set kind",
			p->name);
	if (p->kv_events_replay_port != 0 && p->kv_events_port == 0)
		return CGN_FAIL(err, INVALID,
			"inference_pools.\"%.40s\".kv_events_replay_port needs kv_events_port, the port of the events themselves",
			p->name);
	return CGN_OK;
}

CGN_RC inferencepool_check_config(const struct config *c, struct cgn_err *err)
{
	for (size_t i = 0; i < c->n_inference_pools; i++)
		CGN_TRY(check_pool(&c->inference_pools[i], err));
	return CGN_OK;
}
