/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/flags/flags.h"

#include <stdlib.h>

#include "base/args/args.h"

/* Bytes of KV that move between two engines in a second, as router.disagg.kv_bandwidth is by default. */
#define NETWORK_BYTES_PER_S (10.0 * (1U << 30))

enum flag_type {
	TYPE_STR,
	TYPE_U32,
	TYPE_U64,
	TYPE_F64,
	TYPE_BOOL,
	TYPE_MODEL,
	TYPE_FAULT,
	TYPE_DIALECT,
	TYPE_HASH,
	TYPE_HANDOFF,
	TYPE_ROLE,
	TYPE_PROFILE,
	TYPE_HELP,
	TYPE_VERSION
};

static const struct flag {
	const char *name, *meta;
	enum flag_type type;
	size_t at;
	const char *preset;
	double min, max;
	const char *help;
} flags[] = {
#define FLAG(name, meta, type, cfg_field, preset, min, max, help) \
	{name, meta, TYPE_##type, offsetof(struct sim_cfg, cfg_field), preset, min, max, help},
#include "sim/flags/flags.def"
#undef FLAG
};

static const struct {
	const char *name, *help;
} fault_help[] = {
#define FAULT(id, name, arg, scope, help) {name, help},
#include "sim/faults/faults.def"
#undef FAULT
};

static void *cfg_field(struct sim_cfg *cfg, const struct flag *f)
{
	return (char *)cfg + f->at;
}

static CGN_RC bad_number(const struct flag *f, const char *value, struct cgn_err *err)
{
	return CGN_FAIL(err, INVALID, "--%s \"%.40s\": needs a number from %.15g to %.15g", f->name, value,
		f->min, f->max);
}

static CGN_RC set_integer(struct sim_cfg *cfg, const struct flag *f, const char *value, struct cgn_err *err)
{
	uint64_t v = 0;
	if (!cgn_str_u64(cgn_str_of(value), &v) || (double)v < f->min || (double)v > f->max)
		return bad_number(f, value, err);
	if (f->type == TYPE_U64)
		memcpy(cfg_field(cfg, f), &v, sizeof v);
	else
		memcpy(cfg_field(cfg, f), &(uint32_t){(uint32_t)v}, sizeof(uint32_t));
	return CGN_OK;
}

static CGN_RC set_float(struct sim_cfg *cfg, const struct flag *f, const char *value, struct cgn_err *err)
{
	char *end = NULL;
	double v = strtod(value, &end);
	bool plain = (value[0] >= '0' && value[0] <= '9') || value[0] == '.';
	if (!plain || end == value || *end != '\0' || !(v >= f->min && v <= f->max))
		return bad_number(f, value, err);
	memcpy(cfg_field(cfg, f), &v, sizeof v);
	return CGN_OK;
}

static CGN_RC add_model(struct sim_cfg *cfg, const char *value, struct cgn_err *err)
{
	if (cfg->n_models == SIM_MODELS_MAX)
		return CGN_FAIL(err, INVALID, "--model: at most %d models", SIM_MODELS_MAX);
	if (value[0] == '\0' || !cgn_utf8_valid(value, strlen(value)))
		return CGN_FAIL(err, INVALID, "--model: needs a name in UTF-8");
	cfg->models[cfg->n_models++] = value;
	return CGN_OK;
}

static CGN_RC add_fault(struct sim_cfg *cfg, const char *value, struct cgn_err *err)
{
	if (cfg->faults.n == SIM_FAULTS_MAX)
		return CGN_FAIL(err, INVALID, "--fault: at most %d faults", SIM_FAULTS_MAX);
	CGN_TRY(sim_fault_parse(cgn_str_of(value), &cfg->faults.list[cfg->faults.n], err));
	cfg->faults.n++;
	return CGN_OK;
}

static CGN_RC set_dialect(struct sim_cfg *cfg, const char *value, struct cgn_err *err)
{
	char known[128];
	struct cgn_buf b = cgn_buf_over(known, sizeof known);
	if (sim_dialect_of(cgn_str_of(value), &cfg->dialect))
		return CGN_OK;
	for (enum sim_dialect d = 0; d < SIM_DIALECT_COUNT; d++)
		cgn_buf_fmt(&b, "%s%s", d > 0 ? ", " : "", sim_dialect_name(d));
	return CGN_FAIL(err, INVALID, "--kv-events-format \"%.40s\": needs one of %s", value, cgn_buf_z(&b));
}

static CGN_RC set_hash(struct sim_cfg *cfg, const char *value, struct cgn_err *err)
{
	cfg->hash_bytes = strcmp(value, "bytes") == 0;
	if (!cfg->hash_bytes && strcmp(value, "int") != 0)
		return CGN_FAIL(err, INVALID, "--kv-events-hash \"%.40s\": needs int or bytes", value);
	return CGN_OK;
}

static CGN_RC set_handoff(struct sim_cfg *cfg, const char *value, struct cgn_err *err)
{
	cfg->handoff.kind = handoff_kind_named(cgn_str_of(value));
	if (handoff_ops_of(cfg->handoff.kind)->edits || strcmp(value, "none") == 0)
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"--handoff \"%.40s\": needs none, nixl, mooncake, p2p, sglang or trtllm", value);
}

static CGN_RC set_role(struct sim_cfg *cfg, const char *value, struct cgn_err *err)
{
	static const char *const names[] =
		{[SIM_ROLE_BOTH] = "both", [SIM_ROLE_PREFILL] = "prefill", [SIM_ROLE_DECODE] = "decode"};
	for (size_t i = 0; i < CGN_COUNT(names); i++) {
		cfg->handoff.role = (enum sim_role)i;
		if (strcmp(value, names[i]) == 0)
			return CGN_OK;
	}
	return CGN_FAIL(err, INVALID, "--role \"%.40s\": needs both, prefill or decode", value);
}

static CGN_RC set_profile(struct sim_cfg *cfg, const char *value, struct cgn_err *err)
{
	struct cgn_buf known = {0};
	if (value[0] == '\0')
		return CGN_OK;
	cfg->profile = enginemodel_profile_find(cgn_str_of(value));
	if (cfg->profile != NULL)
		return CGN_OK;
	for (size_t i = 0; enginemodel_profile_at(i) != NULL; i++)
		cgn_buf_fmt(&known, "%s%s", i > 0 ? ", " : "", enginemodel_profile_at(i)->name);
	cgn_rc rc = CGN_FAIL(err, INVALID, "--profile \"%.40s\": there are %s", value, cgn_buf_z(&known));
	cgn_buf_fini(&known);
	return rc;
}

static CGN_RC set_flag(struct sim_cfg *cfg, const struct flag *f, const char *value, struct cgn_err *err)
{
	switch (f->type) {
	case TYPE_STR:
		memcpy(cfg_field(cfg, f), &value, sizeof value);
		return CGN_OK;
	case TYPE_U32:
	case TYPE_U64:
		return set_integer(cfg, f, value, err);
	case TYPE_F64:
		return set_float(cfg, f, value, err);
	case TYPE_BOOL:
		memcpy(cfg_field(cfg, f), &(bool){true}, sizeof(bool));
		return CGN_OK;
	case TYPE_MODEL:
		return add_model(cfg, value, err);
	case TYPE_FAULT:
		return add_fault(cfg, value, err);
	case TYPE_DIALECT:
		return set_dialect(cfg, value, err);
	case TYPE_HASH:
		return set_hash(cfg, value, err);
	case TYPE_HANDOFF:
		return set_handoff(cfg, value, err);
	case TYPE_ROLE:
		return set_role(cfg, value, err);
	case TYPE_PROFILE:
		return set_profile(cfg, value, err);
	case TYPE_HELP:
	case TYPE_VERSION:
		break;
	}
	return CGN_OK;
}

static struct args_flag row_at(const void *user, size_t i)
{
	(void)user;
	return (struct args_flag){flags[i].name, flags[i].meta[0] != '\0' ? flags[i].meta : NULL};
}

static void derive_settings(struct sim_cfg *cfg)
{
	uint64_t held = (uint64_t)cfg->kv_blocks * cfg->block_tokens;
	if (cfg->max_model_len > held)
		cfg->max_model_len = (uint32_t)held;
	if (cfg->step_tokens < cfg->max_batch)
		cfg->step_tokens = cfg->max_batch;
	if (cfg->n_models == 0)
		cfg->models[cfg->n_models++] = "sim";
	cfg->faults.rng = cfg->seed;
}

static CGN_RC check_events(const struct sim_cfg *cfg, struct cgn_err *err)
{
	if (!sim_has_events(cfg) && cfg->events.replay[0] != '\0')
		return CGN_FAIL(err, INVALID,
			"--kv-events-replay needs --kv-events: there is nothing to replay");
	if (cfg->hash_bytes && sim_dialect_describes(cfg->dialect))
		return CGN_FAIL(err, INVALID,
			"--kv-events-hash bytes is for vLLM's formats: SGLang's hashes are numbers");
	return CGN_OK;
}

static CGN_RC check_lora(const struct sim_cfg *cfg, struct cgn_err *err)
{
	if (cfg->lora && cfg->workers > 1)
		return CGN_FAIL(err, INVALID, "--lora needs one worker (--workers 1)");
	return CGN_OK;
}

static CGN_RC check_handoff(const struct sim_cfg *cfg, struct cgn_err *err)
{
	if (cfg->handoff.kind != HANDOFF_NONE &&
		(cfg->workers > 1 || cgn_str_starts(cgn_str_of(cfg->listen), "unix:")))
		return CGN_FAIL(err, INVALID,
			"--handoff needs one worker (--workers 1) and a --listen that others reach by TCP");
	if (cfg->handoff.kind == HANDOFF_NONE && cfg->handoff.role != SIM_ROLE_BOTH)
		return CGN_FAIL(err, INVALID, "--role prefill and --role decode need --handoff");
	return CGN_OK;
}

static CGN_RC set_presets(struct sim_cfg *out, struct cgn_err *err)
{
	for (size_t i = 0; i < CGN_COUNT(flags); i++) {
		bool preset = flags[i].meta[0] != '\0' && flags[i].type != TYPE_MODEL &&
			flags[i].type != TYPE_FAULT;
		if (preset)
			CGN_TRY(set_flag(out, &flags[i], flags[i].preset, err));
	}
	return CGN_OK;
}

static CGN_RC set_given(struct args *line, struct sim_cfg *out, enum sim_flags_then *then,
	struct cgn_err *err)
{
	const struct args_table table = {.program = "cgn-sim", .n_rows = CGN_COUNT(flags), .row = row_at};
	while (!args_end(line) && *then == SIM_RUN) {
		struct args_given given;
		CGN_TRY(args_take(line, &table, &given, err));
		const struct flag *f = &flags[given.row];
		if (f->type == TYPE_HELP)
			*then = SIM_HELP;
		if (f->type == TYPE_VERSION)
			*then = SIM_VERSION;
		CGN_TRY(set_flag(out, f, given.value != NULL ? given.value : "", err));
	}
	return CGN_OK;
}

/* Take the profile's settings as presets. */
static void apply_profile(struct sim_cfg *out, const struct enginemodel_profile *profile)
{
	const struct enginemodel_pace pace = enginemodel_profile_pace(profile);
	out->profile = profile;
	out->prefill_tokens_per_s = pace.prefill_tokens_per_s;
	out->decode_ms = (double)pace.decode * 1e-6;
	out->batch_effect = pace.batch_effect;
	out->terms = pace.terms;
	out->kv_blocks = pace.kv_tokens / out->block_tokens;
	out->kv_load_us = out->block_tokens * profile->kv_bytes / NETWORK_BYTES_PER_S * 1e6;
}

CGN_RC sim_flags_parse(int argc, char **argv, struct sim_cfg *out, enum sim_flags_then *then,
	struct cgn_err *err)
{
	struct args line = {.argc = argc, .argv = argv, .at = 1};
	*out = (struct sim_cfg){0};
	*then = SIM_RUN;
	CGN_TRY(set_presets(out, err));
	CGN_TRY(set_given(&line, out, then, err));
	if (out->profile != NULL) {
		const struct sim_cfg first = *out;
		*out = (struct sim_cfg){0};
		CGN_TRY(set_presets(out, err));
		out->block_tokens = first.block_tokens;
		apply_profile(out, first.profile);
		line.at = 1;
		CGN_TRY(set_given(&line, out, then, err));
	}
	if ((uint64_t)out->kv_blocks * out->block_tokens < 2)
		return CGN_FAIL(err, INVALID,
			"--kv-blocks %u times --block-tokens %u is less than a prompt and an answer of one token each",
			out->kv_blocks, out->block_tokens);
	if (out->chat_template[0] != '\0' && out->tokenizer[0] == '\0')
		return CGN_FAIL(err, INVALID,
			"--chat-template needs --tokenizer, which cuts the rendered text into tokens");
	CGN_TRY(check_events(out, err));
	CGN_TRY(check_lora(out, err));
	CGN_TRY(check_handoff(out, err));
	derive_settings(out);
	return CGN_OK;
}

void sim_flags_help(struct cgn_buf *out)
{
	cgn_buf_putz(out,
		"cgn-sim: an LLM engine without GPU and weights. Its API is vLLM's.\n\n"
		"usage: cgn-sim [flags]\n\nflags:\n");
	for (size_t i = 0; i < CGN_COUNT(flags); i++) {
		cgn_buf_fmt(out, "  --%s %s%*s%s", flags[i].name, flags[i].meta,
			(int)(30 - strlen(flags[i].name) - strlen(flags[i].meta)), "", flags[i].help);
		if (flags[i].preset[0] != '\0')
			cgn_buf_fmt(out, " [%s]", flags[i].preset);
		cgn_buf_char(out, '\n');
	}
	cgn_buf_putz(out, "\nfaults: KIND[=ARG][@0.25 | @every=N | @after=N | @nth=N]\n");
	for (size_t i = 0; i < CGN_COUNT(fault_help); i++)
		cgn_buf_fmt(out, "  %-18s%s\n", fault_help[i].name, fault_help[i].help);
	cgn_buf_putz(out, "\nformats of KV events:\n");
	for (enum sim_dialect d = 0; d < SIM_DIALECT_COUNT; d++)
		cgn_buf_fmt(out, "  %-18s%s\n", sim_dialect_name(d), sim_dialect_help(d));
	cgn_buf_putz(out, "\nprofiles:\n");
	for (size_t i = 0; enginemodel_profile_at(i) != NULL; i++)
		cgn_buf_fmt(out, "  %-22s%s\n", enginemodel_profile_at(i)->name,
			enginemodel_profile_at(i)->text);
	cgn_buf_putz(out,
		"\nwhile it runs:\n"
		"  GET  /sim/state   running, waiting and finished requests, KV memory\n"
		"  POST /sim/faults  {\"faults\": [\"http500@0.5\"]} replaces the faults; an empty list removes all\n"
		"  GET  /sim/blocks  the digest of every cached block, by rank and tier (with --kv-digests, --kv-events or --kv-uds)\n"
		"  POST /sim/fill    {\"blocks\": n, \"seed\": s} fills each rank's cache with n generated blocks, in chains of \"chain\" [64]\n"
		"  POST /reset_prefix_cache[?reset_running_requests=true]   empties all tiers; refused while requests run\n"
		"\nexamples:\n"
		"  cgn-sim --model llama-3.1-8b                       one model in real time on 127.0.0.1:8000\n"
		"  cgn-sim --profile h100-llama-8b                    the pace of Llama 3.1 8B on an H100\n"
		"  cgn-sim --listen 127.0.0.1:0 --time-scale 0        as fast as the machine allows, on a free port\n"
		"  cgn-sim --kv-blocks 512 --max-batch 8              a small GPU: requests queue early\n"
		"  cgn-sim --kv-events tcp://127.0.0.1:5557 --kv-events-replay tcp://127.0.0.1:5657 --workers 2 --cpu-blocks 16384\n"
		"  cgn-sim --kv-uds /run/cognitora/kv.sock             blocks in cgn-kvcached, shared by all simulators of the node\n"
		"  cgn-sim --handoff nixl --role prefill               computes prompts for simulators with --role decode\n"
		"  cgn-sim --tokenizer m/tokenizer.json --chat-template m/tokenizer_config.json   the token ids of a real model\n"
		"  cgn-sim --fault http500@0.1 --fault cut-after=20@every=50\n"
		"  cgn-sim --token-interval-us 50000 --max-batch 10000 --kv-blocks 1000000   many paced streams\n");
}
