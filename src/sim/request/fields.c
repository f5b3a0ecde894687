/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/request/fields.h"

#include "base/core/err.h"

static const char *const key_names[SIM_KEY_COUNT] = {
#define KEY(id, name) name,
#include "sim/request/keys.def"
#undef KEY
};

const char *sim_key_name(enum sim_key key)
{
	return key_names[key];
}

bool sim_field(const struct sim_fields *f, enum sim_key key, struct json_val *out)
{
	if (f->at[key].raw.p == NULL)
		return false;
	*out = f->at[key];
	return true;
}

bool sim_body_parse(struct cgn_str body, struct sim_fields *out, struct sim_refusal *no)
{
	struct cgn_err err = {0};
	if (!cgn_ok(json_parse(body, &out->root, NULL, &err)))
		return sim_refuse(no, 400, "invalid_json", NULL, "the body is not valid JSON: %s", err.msg);
	if (out->root.type != JSON_OBJECT)
		return sim_refuse(no, 400, "invalid_type", NULL, "the body must be a JSON object");
	json_pick(out->root, key_names, SIM_KEY_COUNT, out->at);
	return true;
}
