/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/fleet/settings/settings.h"

#include "policy/answer/batch/batch.h"
#include "policy/answer/cascade/cascade.h"
#include "policy/answer/hook/hook.h"
#include "policy/answer/passing/passing.h"
#include "policy/fleet/autoscale/autoscale.h"
#include "policy/fleet/inferencepool/inferencepool.h"
#include "policy/kv/kvsite/kvsite.h"
#include "policy/node/breaker/breaker.h"
#include "policy/node/engine/engine.h"
#include "policy/route/peer/check.h"
#include "policy/route/routing/document.h"
#include "policy/route/session/session.h"
#include "policy/who/auth/auth.h"
#include "policy/who/budget/budget.h"
#include "policy/who/rate/rate.h"
#include "policy/who/site/site.h"

CGN_RC settings_load(const char *file_name, struct cgn_str toml, const char *const *env,
	const char *const *flags, size_t n_flags, struct config **out, struct cgn_err *err)
{
	static cgn_rc (*const rules[])(const struct config *c, struct cgn_err *err) = {
		auth_check_config,
		route_check_config,
		session_check_config,
		breaker_check_config,
		batch_check_config,
		cascade_check_config,
		passing_check_config,
		engine_check_config,
		budget_check_config,
		rate_check_config,
		site_check_config,
		hook_check_config,
		peer_check_config,
		engine_check_nodes,
		inferencepool_check_config,
		kvsite_check_config,
		autoscale_check_config,
	};
	CGN_ON_EXIT(config_free) struct config *c = NULL;
	CGN_TRY(config_read(file_name, toml, env, flags, n_flags, &c, err));
	for (size_t i = 0; i < CGN_COUNT(rules); i++)
		CGN_TRY(rules[i](c, err));
	*out = CGN_TAKE(&c);
	return CGN_OK;
}
