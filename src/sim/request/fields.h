/* SPDX-License-Identifier: Apache-2.0 */
/* fields: the members of a generating request (keys.def), found in one walk of the body. Pure. */
#pragma once
#include "base/json/json.h"
#include "sim/text/refusal.h"

enum sim_key {
#define KEY(id, name) SIM_KEY_##id,
#include "sim/request/keys.def"
#undef KEY
	SIM_KEY_COUNT
};
struct sim_fields {
	struct json_val root, at[SIM_KEY_COUNT];
};
const char *sim_key_name(enum sim_key key);
/* Copy the value of |key| into |*out|; false when the body has no such member. */
bool sim_field(const struct sim_fields *f, enum sim_key key, struct json_val *out);
/* Parse |body|, which |out| borrows. False with a 400 in |no| when |body| is not a JSON object. */
bool sim_body_parse(struct cgn_str body, struct sim_fields *out, struct sim_refusal *no);
