/* SPDX-License-Identifier: Apache-2.0 */
/* profile: the pace of an engine model, computed from published numbers of a GPU and a model (profiles.def). Pure. */
#pragma once
#include "base/core/str.h"
#include "lab/enginemodel/enginemodel.h"

struct enginemodel_profile {
	const char *name, *text;
	double weight_bytes;             /* Read in each step. */
	double token_flops, pair_flops;  /* To compute a token, and its attention to one token before it. */
	double kv_bytes;                 /* KV of a token. */
	double memory_bytes;             /* All GPUs of the engine together, as the peaks. */
	double bytes_per_s, flops_per_s; /* Peaks. */
	double reached_bytes, reached_flops; /* Shares of the peaks that engines reach. */
};
/* Settings of struct enginemodel_cfg, and the tokens that fit into the memory beside the weights. */
struct enginemodel_pace {
	double prefill_tokens_per_s;
	cgn_nsec decode;
	double batch_effect;
	struct enginemodel_terms terms;
	uint32_t kv_tokens;
};
const struct enginemodel_profile *enginemodel_profile_at(size_t i); /* NULL: there are fewer. */
/* Return the profile of this name; NULL: there is none. */
const struct enginemodel_profile *enginemodel_profile_find(struct cgn_str name);
struct enginemodel_pace enginemodel_profile_pace(const struct enginemodel_profile *p);
