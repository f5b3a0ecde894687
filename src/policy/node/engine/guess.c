/* SPDX-License-Identifier: Apache-2.0 */
/* guess: the kind of an engine, by its list of models.
 *   | owned_by | kind | read at |
 *   | vllm | vllm | vLLM 0.26, vllm/entrypoints/openai/models/protocol.py (ModelCard) |
 *   | sglang | sglang | SGLang 0.5, sglang/srt/entrypoints/openai/protocol.py (ModelCard) |
 *   | tensorrt_llm | trtllm | TensorRT-LLM 1.0, tensorrt_llm/serve/openai_protocol.py (ModelCard) |
 *   | llamacpp | llama_cpp | llama-server 0.7.0, asked | */
#include "base/json/json.h"
#include "policy/node/engine/engine_priv.h"

static const struct {
	const char *owner;
	const struct engine_ops *kind;
} owners[] = {{"vllm", &engine_vllm}, {"sglang", &engine_sglang}, {"tensorrt_llm", &engine_trtllm},
	{"llamacpp", &engine_llama_cpp}};

/* Return the string as it stands in the document, without quotes. */
static struct cgn_str text_of(struct json_val v)
{
	if (v.type != JSON_STRING)
		return (struct cgn_str){"", 0};
	return (struct cgn_str){v.raw.p + 1, v.raw.n - 2};
}

const struct engine_ops *engine_kind_guess(struct cgn_str body)
{
	struct json_val doc, data, entry, owner;
	if (!cgn_ok(json_parse(body, &doc, NULL, NULL)) || !json_get(doc, "data", &data) ||
		data.type != JSON_ARRAY)
		return &engine_openai_compat;
	for (struct json_iter it = json_iter_of(data); json_next_elem(&it, &entry);)
		for (size_t i = 0; i < CGN_COUNT(owners) && json_get(entry, "owned_by", &owner); i++)
			if (json_key_is(text_of(owner), owners[i].owner))
				return owners[i].kind;
	return &engine_openai_compat;
}
