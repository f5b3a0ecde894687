/* SPDX-License-Identifier: Apache-2.0 */
/* breaker: the settings of router.retry. */
#include "policy/config/config.h"
#include "policy/node/breaker/breaker.h"

CGN_RC breaker_check_config(const struct config *c, struct cgn_err *err)
{
	const struct config_list *on = &c->router.retry.on;
	for (size_t i = 0; i < on->n; i++) {
		if (breaker_failure_bit(on->v[i]) != 0)
			continue;
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf words = {0};
		breaker_failure_words(&words);
		return CGN_FAIL(err, INVALID, "%s: router.retry.on has \"%.40s\", must be some of: %s",
			config_origin(c, "router.retry.on"), on->v[i], cgn_buf_z(&words));
	}
	return CGN_OK;
}
