/* SPDX-License-Identifier: Apache-2.0 */
/* hints: nvext.agent_hints, as NVIDIA Dynamo 1.6 documents the fields (docs.nvidia.com/dynamo, "Agent Hints", read in
 * November 2026): priority, a whole number of which higher ones go first and 0 is usual; osl, the expected tokens of the
 * answer. All others are the engine's. */
#include <math.h>
#include <stdio.h>

#include "policy/text/body/body_priv.h"

static CGN_RC hint_refuse(struct body_fault *fault, const char *param, const char *what, struct json_val is)
{
	fault->code = "invalid_hint";
	fault->param = param;
	(void)snprintf(fault->text, sizeof fault->text, "%s is %s, not %.*s", param, what,
		(int)(is.raw.n < 40 ? is.raw.n : 40), is.raw.p);
	return CGN_RC_OF(CGN_INVALID);
}

/* Read the number |key| of |hints| into |out| if it is there. False: it is not a whole number from |least| to
 * |most|. */
static bool number_read(struct json_val hints, const char *key, double least, double most,
	struct json_val *value, bool *there, double *out)
{
	*there = json_get(hints, key, value) && value->type != JSON_NULL;
	if (!*there)
		return true;
	return value->type == JSON_NUMBER && json_f64(*value, out) && *out >= least && *out <= most &&
		trunc(*out) >= *out && trunc(*out) <= *out;
}

CGN_RC body_hints_read(struct json_val nvext, struct body_hints *out, struct body_fault *fault)
{
	struct json_val hints, value = {.raw = {NULL, 0}};
	double number = 0;
	bool there = false;
	*out = (struct body_hints){.priority = 0};
	if (nvext.raw.p == NULL || nvext.type != JSON_OBJECT || !json_get(nvext, "agent_hints", &hints) ||
		hints.type == JSON_NULL)
		return CGN_OK;
	if (hints.type != JSON_OBJECT)
		return hint_refuse(fault, "nvext.agent_hints", "an object", hints);
	if (!number_read(hints, "priority", INT32_MIN, INT32_MAX, &value, &there, &number))
		return hint_refuse(fault, "nvext.agent_hints.priority", "a whole number", value);
	out->has_priority = there;
	out->priority = there ? (int32_t)number : 0;
	if (!number_read(hints, "osl", 0, UINT32_MAX, &value, &there, &number))
		return hint_refuse(fault, "nvext.agent_hints.osl", "a number of tokens", value);
	out->answer = there ? (uint32_t)number : 0;
	return CGN_OK;
}
