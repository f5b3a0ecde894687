/* SPDX-License-Identifier: Apache-2.0 */
/* offload: which kv_offload goes with which engine and role: the offloads of each kind's struct engine_ops. */
#include "policy/node/engine/engine_priv.h"

static void allowed_text(unsigned allowed, char *out, size_t cap)
{
	size_t n = 0;
	out[0] = '\0';
	for (int v = OFFLOAD_NONE; v <= OFFLOAD_NATIVE; v++)
		if ((allowed & ENGINE_OFFLOAD(v)) != 0 && n < cap)
			n += (size_t)snprintf(out + n, cap - n, "%s%s", n > 0 ? ", " : "",
				config_enum_text(v));
}

CGN_RC engine_offload_check(const struct config_engine *e, int role, struct cgn_err *err)
{
	const struct engine_ops *ops = engine_ops_of(e->kind);
	unsigned allowed =
		ENGINE_OFFLOAD(OFFLOAD_NONE) | (role == ROLE_BOTH ? ops->offloads : ops->offloads_apart);
	char text[128];
	if ((allowed & ENGINE_OFFLOAD(e->kv_offload)) == 0) {
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
	unsigned mixing = ENGINE_OFFLOAD(OFFLOAD_LMCACHE) | ENGINE_OFFLOAD(OFFLOAD_KVBM) |
		ENGINE_OFFLOAD(OFFLOAD_FLEXKV);
	if (e->kind == ENGINE_LLAMA_CPP)
		return engine_program_is(e, "python");
	return (mixing & ENGINE_OFFLOAD(e->kv_offload)) != 0;
}
