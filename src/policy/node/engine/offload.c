/* SPDX-License-Identifier: Apache-2.0 */
/* offload: which kv_offload goes with which engine and role.
 *
 *   | engine | role both | role prefill or decode |
 *   | vllm | none nixl lmcache kvbm flexkv mooncake native | the same: each is stacked with NIXL, except mooncake |
 *   | sglang | none hicache | none nixl hicache mooncake: between the nodes NIXL, or Mooncake |
 *   | trtllm | none nixl kvbm native | none nixl kvbm native: between the nodes NIXL |
 *   | llama_cpp, mlx, openai_compat, sim | none | none |
 *
 * Read at vLLM 0.33, SGLang 0.5.23; TensorRT-LLM 1.1, documentation. */
#include "policy/node/engine/engine_priv.h"

#define BIT(x) (1U << ((x) - OFFLOAD_NONE))

static const struct offload_row {
	int kind;
	unsigned both, apart; /* apart: role prefill or decode */
} rows[] = {
	{ENGINE_VLLM,
		BIT(OFFLOAD_NONE) | BIT(OFFLOAD_NIXL) | BIT(OFFLOAD_LMCACHE) | BIT(OFFLOAD_KVBM) |
			BIT(OFFLOAD_FLEXKV) | BIT(OFFLOAD_MOONCAKE) | BIT(OFFLOAD_NATIVE),
		BIT(OFFLOAD_NONE) | BIT(OFFLOAD_NIXL) | BIT(OFFLOAD_LMCACHE) | BIT(OFFLOAD_KVBM) |
			BIT(OFFLOAD_FLEXKV) | BIT(OFFLOAD_MOONCAKE) | BIT(OFFLOAD_NATIVE)},
	{ENGINE_SGLANG, BIT(OFFLOAD_NONE) | BIT(OFFLOAD_HICACHE),
		BIT(OFFLOAD_NONE) | BIT(OFFLOAD_NIXL) | BIT(OFFLOAD_HICACHE) | BIT(OFFLOAD_MOONCAKE)},
	{ENGINE_TRTLLM, BIT(OFFLOAD_NONE) | BIT(OFFLOAD_NIXL) | BIT(OFFLOAD_KVBM) | BIT(OFFLOAD_NATIVE),
		BIT(OFFLOAD_NONE) | BIT(OFFLOAD_NIXL) | BIT(OFFLOAD_KVBM) | BIT(OFFLOAD_NATIVE)},
	{ENGINE_LLAMA_CPP, BIT(OFFLOAD_NONE), BIT(OFFLOAD_NONE)},
	{ENGINE_MLX, BIT(OFFLOAD_NONE), BIT(OFFLOAD_NONE)},
	/* Engines that are not managed may have any connector; the agent only tells routers of it. */
	{ENGINE_OPENAI_COMPAT, BIT(OFFLOAD_NONE), BIT(OFFLOAD_NONE)},
	{ENGINE_SIM, BIT(OFFLOAD_NONE), BIT(OFFLOAD_NONE)},
};

static unsigned allowed_for(int kind, int role)
{
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (rows[i].kind == kind)
			return role == ROLE_BOTH ? rows[i].both : rows[i].apart;
	return BIT(OFFLOAD_NONE);
}

static void allowed_text(unsigned allowed, char *out, size_t cap)
{
	size_t n = 0;
	out[0] = '\0';
	for (int v = OFFLOAD_NONE; v <= OFFLOAD_NATIVE; v++)
		if ((allowed & BIT(v)) != 0 && n < cap)
			n += (size_t)snprintf(out + n, cap - n, "%s%s", n > 0 ? ", " : "",
				config_enum_text(v));
}

CGN_RC engine_offload_check(const struct config_engine *e, int role, struct cgn_err *err)
{
	unsigned allowed = allowed_for(e->kind, role);
	char text[128];
	if ((allowed & BIT(e->kv_offload)) == 0) {
		allowed_text(allowed, text, sizeof text);
		return CGN_FAIL(err, INVALID,
			"engine.kv_offload = \"%s\" does not go with engine.kind = \"%s\" and agent.role = \"%s\"; allowed: %s",
			config_enum_text(e->kv_offload), config_enum_text(e->kind), config_enum_text(role),
			text);
	}
	if (e->kv_offload == OFFLOAD_MOONCAKE && role == ROLE_BOTH && e->managed && e->kv_offload_url == NULL)
		return CGN_FAIL(err, INVALID,
			"engine.kv_offload = \"mooncake\" with agent.role = \"both\" needs engine.kv_offload_url, host:port of the Mooncake master");
	return CGN_OK;
}

uint64_t engine_offload_ram(const struct config_engine *e)
{
	return e->kv_offload_ram > 0 ? e->kv_offload_ram : (uint64_t)8 << 30;
}

bool engine_mixes_salts(const struct config_engine *e)
{
	unsigned mixing = BIT(OFFLOAD_LMCACHE) | BIT(OFFLOAD_KVBM) | BIT(OFFLOAD_FLEXKV);
	if (e->kind == ENGINE_LLAMA_CPP)
		return engine_program_is(e, "python");
	return (mixing & BIT(e->kv_offload)) != 0;
}
