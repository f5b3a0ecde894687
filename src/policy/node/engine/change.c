/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/engine/change.h"
#include "base/json/json.h"

const char *engine_change_ask(int kind, enum engine_change what, struct cgn_str name, struct cgn_str path,
	struct cgn_buf *body)
{
	const char *const *changes = engine_ops_of(kind)->changes;
	if (changes == NULL)
		return NULL;
	struct json_out j = json_out_to(body);
	json_open(&j, '{');
	if (what == ENGINE_LORA_LOAD || what == ENGINE_LORA_UNLOAD)
		json_key_str(&j, "lora_name", name);
	if (what == ENGINE_LORA_LOAD)
		json_key_str(&j, "lora_path", path);
	json_close(&j, '}');
	return changes[what];
}

bool engine_change_is_unknown(struct cgn_str name, int status, struct cgn_str answer)
{
	return status == 404 && (name.n == 0 || memmem(answer.p, answer.n, name.p, name.n) == NULL);
}

/* An engine says of the adapter that it is as wanted with these words before and after its name. */
static const struct refusal {
	enum engine_change what;
	int status;
	const char *before, *after;
} refusals[] = {
	{ENGINE_LORA_LOAD, 400, "The lora adapter '", "' has already been loaded."}, /* vLLM */
	{ENGINE_LORA_UNLOAD, 404, "The lora adapter '", "' cannot be found."},
	{ENGINE_LORA_LOAD, 400, "Failed to load LoRA adapter ", " because it is already loaded"}, /* SGLang */
	{ENGINE_LORA_UNLOAD, 400, "LoRA with name ", " does not exist."},
};

bool engine_change_is_so(enum engine_change what, struct cgn_str name, int status, struct cgn_str answer)
{
	if (what == ENGINE_WAKE && (status == 404 || status == 405))
		return true;
	if (what == ENGINE_LORA_UNLOAD && engine_change_is_unknown(name, status, answer))
		return true;
	for (size_t i = 0; i < CGN_COUNT(refusals); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf said = {0};
		if (refusals[i].what != what || refusals[i].status != status)
			continue;
		cgn_buf_putz(&said, refusals[i].before);
		cgn_buf_str(&said, name);
		cgn_buf_putz(&said, refusals[i].after);
		if (!said.bad && memmem(answer.p, answer.n, said.p, said.n) != NULL)
			return true;
	}
	return false;
}
