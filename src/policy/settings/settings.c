/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/settings/settings.h"

#include "policy/auth/auth.h"
#include "policy/autoscale/autoscale.h"
#include "policy/batch/batch.h"
#include "policy/breaker/breaker.h"
#include "policy/budget/budget.h"
#include "policy/cascade/cascade.h"
#include "policy/engine/engine.h"
#include "policy/hook/hook.h"
#include "policy/inferencepool/inferencepool.h"
#include "policy/kvsite/kvsite.h"
#include "policy/limit/limit.h"
#include "policy/passing/passing.h"
#include "policy/remote/check.h"
#include "policy/routing/document.h"
#include "policy/session/session.h"

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
		limit_check_config,
		hook_check_config,
		remote_check_config,
		engine_check_nodes,
		inferencepool_check_config,
		kvsite_check_config,
		autoscale_check_config,
	};
	CGN_ON_EXIT(config_free) struct config *c = NULL;
	CGN_TRY(config_read(file_name, toml, env, flags, n_flags, &c, err));
	for (size_t i = 0; i < CGN_COUNT(rules); i++)
		CGN_TRY(rules[i](c, err));
	*out = c;
	c = NULL;
	return CGN_OK;
}
