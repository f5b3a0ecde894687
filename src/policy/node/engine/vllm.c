/* SPDX-License-Identifier: Apache-2.0 */
/* vLLM's dialect, which openai_compat and sim share: the names of its metrics, and /tokenize. */
#include "policy/node/engine/engine_priv.h"
#include "policy/node/engine/prom.h"

/* ---- load ---- */

/* vLLM reports its configuration in the labels of a sample whose value is always 1. */
static void vllm_read_cache(struct cgn_str text, struct engine_load *into)
{
	struct prom_reader r = prom_reader_of(text);
	struct prom_sample s;
	uint64_t total = 0;
	bool keeps = false, told = false;
	while (prom_next(&r, &s)) {
		struct cgn_str label;
		uint64_t v = 0;
		if (!cgn_str_is(s.name, "vllm:cache_config_info"))
			continue;
		if (prom_label(&s, "num_gpu_blocks", &label) && cgn_str_u64(label, &v) &&
			!__builtin_add_overflow(total, v, &total))
			into->kv_blocks_total = total;
		if (prom_label(&s, "block_size", &label) && cgn_str_u64(label, &v) && v <= UINT32_MAX)
			into->kv_block_tokens = (uint32_t)v;
		if (prom_label(&s, "enable_prefix_caching", &label)) {
			told = true;
			keeps = keeps || !cgn_str_is(label, "False");
		}
	}
	if (told)
		into->keeps_none = !keeps;
}

void engine_read_vllm(struct cgn_str text, struct engine_load *into)
{
	double v = 0;
	engine_read_requests(text, "vllm:num_requests_running", &into->running);
	engine_read_requests(text, "vllm:num_requests_waiting", &into->waiting);
	(void)prom_sum(text, "vllm:prompt_tokens_total", &into->work);
	engine_read_made(text, "vllm:generation_tokens_total", "vllm:num_preemptions_total", into);
	/* vLLM's V1 engine renamed the metric. Despite "perc", both range from 0 to 1. */
	if ((prom_max(text, "vllm:kv_cache_usage_perc", &v) ||
		    prom_max(text, "vllm:gpu_cache_usage_perc", &v)) &&
		v >= 0 && v <= 1)
		into->kv_usage = v;
	vllm_read_cache(text, into);
}

/* ---- token ids ---- */

static void vllm_ask_chat(struct cgn_str model, const struct prompt *p, struct cgn_str before,
	struct cgn_buf *body)
{
	struct json_out j = json_out_to(body);
	(void)before;
	json_open(&j, '{');
	json_key_str(&j, "model", model);
	json_key_bool(&j, "add_generation_prompt", p->add_generation_prompt);
	json_key_bool(&j, "continue_final_message", p->continue_final_message);
	json_key_bool(&j, "add_special_tokens", p->add_specials);
	engine_put_member(&j, "messages", p->messages);
	engine_put_member(&j, "tools", p->tools);
	engine_put_member(&j, "chat_template_kwargs", p->kwargs);
	json_close(&j, '}');
}

static void vllm_ask_text(struct cgn_str model, const struct prompt *p, struct cgn_str before,
	struct cgn_buf *body)
{
	struct json_out j = json_out_to(body);
	(void)before;
	json_open(&j, '{');
	json_key_str(&j, "model", model);
	json_key_bool(&j, "add_special_tokens", p->add_specials);
	json_key_str(&j, "prompt", p->text);
	json_close(&j, '}');
}

const struct engine_tokens_ops engine_tokens_maybe = {
	.format = PROMPT_RAW,
	.guess = true,
	.chat = {{"/tokenize", vllm_ask_chat, engine_read_tokens}},
	.text = {{"/tokenize", vllm_ask_text, engine_read_tokens}},
};

const struct engine_tokens_ops engine_tokens_vllm = {
	.format = PROMPT_RAW,
	.chat = {{"/tokenize", vllm_ask_chat, engine_read_tokens}},
	.text = {{"/tokenize", vllm_ask_text, engine_read_tokens}},
};
