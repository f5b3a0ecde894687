/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/engine/change.h"

static const struct change_row {
	int kind;
	const char *paths[ENGINE_CHANGES]; /* In the order of enum engine_change */
} rows[] = {
	{ENGINE_VLLM, {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}},
	{ENGINE_SGLANG, {"/load_lora_adapter", "/unload_lora_adapter"}},
};

const char *engine_change_ask(int kind, enum engine_change what, struct cgn_str name, struct cgn_str path,
	struct cgn_buf *body)
{
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		if (rows[i].kind != kind)
			continue;
		struct json_out j = json_out_to(body);
		json_open(&j, '{');
		json_key_str(&j, "lora_name", name);
		if (what == ENGINE_LORA_LOAD)
			json_key_str(&j, "lora_path", path);
		json_close(&j, '}');
		return rows[i].paths[what];
	}
	return NULL;
}
