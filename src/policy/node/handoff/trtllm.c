/* SPDX-License-Identifier: Apache-2.0 */
/* trtllm: the context engine's parameters go to the generation engine with another request_type. */
#include "policy/node/handoff/handoff_priv.h"

/* A snowflake: 41 bits of milliseconds, 22 bits of chance. TensorRT-LLM keeps ids below 2^42 for itself. */
static uint64_t request_number(const struct handoff_job *job)
{
	return (job->now_ms & (((uint64_t)1 << 41) - 1)) << 22 | (job->number & (((uint64_t)1 << 22) - 1));
}

static void trtllm_put(const struct handoff_job *job, enum handoff_leg leg, struct json_out *o)
{
	struct json_val params, value;
	struct cgn_str key;
	json_key_open(o, "disaggregated_params", '{');
	json_key_z(o, "request_type", leg == HANDOFF_PREFILL ? "context_only" : "generation_only");
	if (leg == HANDOFF_PREFILL) {
		json_key_u64(o, "disagg_request_id", request_number(job));
	} else if (cgn_ok(json_parse(job->params, &params, NULL, NULL)) && params.type == JSON_OBJECT) {
		for (struct json_iter it = json_iter_of(params); json_next_member(&it, &key, &value);) {
			char room[JSON_KEY_MAX + 1];
			if (json_key_is(key, "request_type") || !cgn_str_copyz(room, sizeof room, key) ||
				memchr(key.p, '\\', key.n) != NULL)
				continue;
			json_key(o, room);
			json_put_raw(o, value.raw);
		}
	}
	json_close(o, '}');
}

const struct handoff_ops handoff_trtllm = {
	.kind = HANDOFF_TRTLLM,
	.name = "trtllm",
	.order = HANDOFF_IN_SEQUENCE,
	.edits = true,
	.alone = true,
	.version_path = "/version",
	.lease_ms = 60000, /* kv_transfer_timeout_ms */
	.member = "disaggregated_params",
	.in_choice = true,
	.put = trtllm_put,
};
