/* SPDX-License-Identifier: Apache-2.0 */
/* sglang: both engines get the prefill engine's bootstrap server and the same room. Engines of a disaggregated SGLang
 * refuse requests without a room, so none of them answers alone. Each prompt of a list has a room of its own. A request
 * for n answers is sent n + 1 times within SGLang, all with the same room, and never ends (managers/tokenizer_manager.py,
 * _handle_batch_request): it is not handed over. */
#include "policy/node/handoff/handoff_priv.h"

/* Return how many prompts the body has, if they are a list of prompts; 0: it is one prompt. */
static size_t prompts_count(struct json_val body)
{
	struct json_val prompt, elem;
	size_t n = 0;
	if (!json_get(body, "prompt", &prompt) || prompt.type != JSON_ARRAY)
		return 0;
	for (struct json_iter it = json_iter_of(prompt); json_next_elem(&it, &elem); n++)
		if (elem.type != JSON_STRING && elem.type != JSON_ARRAY)
			return 0;
	return n;
}

static void sglang_put(const struct handoff_job *job, enum handoff_leg leg, struct json_out *o)
{
	size_t n = prompts_count(job->body);
	(void)leg;
	if (n == 0) {
		json_key_str(o, "bootstrap_host", job->prefill->host);
		json_key_u64(o, "bootstrap_port", job->prefill->port);
		json_key_u64(o, "bootstrap_room", job->number);
		return;
	}
	json_key_open(o, "bootstrap_host", '[');
	for (size_t i = 0; i < n; i++)
		json_put_str(o, job->prefill->host);
	json_close(o, ']');
	json_key_open(o, "bootstrap_port", '[');
	for (size_t i = 0; i < n; i++)
		json_put_u64(o, job->prefill->port);
	json_close(o, ']');
	json_key_open(o, "bootstrap_room", '[');
	for (size_t i = 0; i < n; i++)
		json_put_u64(o, job->number + i);
	json_close(o, ']');
}

const struct handoff_ops handoff_sglang = {
	.kind = HANDOFF_SGLANG,
	.name = "sglang",
	.order = HANDOFF_AT_ONCE,
	.edits = true,
	.several = true,
	.port = 8998,
	.version_path = "/get_server_info",
	.put = sglang_put,
};
