/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/enginemodel/profile.h"

/* Sampling and bookkeeping for a sequence in a step: assumed, no published number was found. */
#define SEQUENCE_NS 10e3
/* Share of the memory that engines use (vLLM: --gpu-memory-utilization). */
#define MEMORY_SHARE 0.9

static const struct enginemodel_profile rows[] = {
#define PROFILE(name, text, weights, token_flops, pair_flops, kv, memory, bytes, flops, reached_bytes, \
	reached_flops)                                                                                 \
	{name, text, weights, token_flops, pair_flops, kv, memory, bytes, flops, reached_bytes,        \
		reached_flops},
#include "lab/enginemodel/profiles.def"
#undef PROFILE
};

const struct enginemodel_profile *enginemodel_profile_at(size_t i)
{
	return i < CGN_COUNT(rows) ? &rows[i] : NULL;
}

const struct enginemodel_profile *enginemodel_profile_find(struct cgn_str name)
{
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (cgn_str_is(name, rows[i].name))
			return &rows[i];
	return NULL;
}

struct enginemodel_pace enginemodel_profile_pace(const struct enginemodel_profile *p)
{
	const double bytes = p->bytes_per_s * p->reached_bytes * 1e-9,
		     flops = p->flops_per_s * p->reached_flops * 1e-9; /* In a nanosecond. */
	const double step = p->weight_bytes / bytes;
	return (struct enginemodel_pace){.prefill_tokens_per_s = 1e9 * flops / p->token_flops,
		.decode = (cgn_nsec)step,
		.batch_effect = SEQUENCE_NS / step,
		.terms = {p->kv_bytes / bytes, p->pair_flops / flops, true},
		.kv_tokens = (uint32_t)((p->memory_bytes * MEMORY_SHARE - p->weight_bytes) / p->kv_bytes)};
}
