/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/config/config.h"
#include "policy/route/chooser/chooser.h"

#define HANDOFF_MS 1 /* Assumed time of a hand-off beside the transfer. */

static enum route_energy_mode energy_mode(int configured)
{
	return configured == ENERGY_MODE_ON     ? ROUTE_ENERGY_ON
		: configured == ENERGY_MODE_OFF ? ROUTE_ENERGY_OFF
						: ROUTE_ENERGY_SHADOW;
}

void chooser_rules_fill(const struct config *cfg, struct route_rules *out)
{
	*out = (struct route_rules){
		.weights = {cfg->router.score_weights.kv, cfg->router.score_weights.load,
			cfg->router.score_weights.power, cfg->router.score_weights.capacity},
		.tiers = {{(float)cfg->router.tier_weights.gpu, (float)cfg->router.tier_weights.ram,
			(float)cfg->router.tier_weights.ssd, (float)cfg->router.tier_weights.remote}},
		.max_inflight = cfg->router.admission.max_concurrent_per_replica,
		.session_bound = cfg->router.session_bound,
		.disagg = {.enabled = cfg->router.disagg.enabled,
			.colocate_below = cfg->router.disagg.colocate_below_tokens,
			.token_bytes = (double)cfg->router.disagg.kv_bytes_per_token,
			.prior = {HANDOFF_MS,
				(float)((double)cfg->router.disagg.kv_bytes_per_token * 1e3 /
					(double)cfg->router.disagg.kv_bandwidth),
				false}},
		.energy = {.mode = energy_mode(cfg->router.energy.mode),
			.ms_per_joule = cfg->router.energy.ms_per_joule,
			.ttft_ms = (float)((double)cfg->router.energy.ttft * 1e-6),
			.itl_ms = (float)((double)cfg->router.energy.itl * 1e-6),
			.budget_w = cfg->router.energy.budget},
		.counts_saved = cfg->router.autoscaler.enabled,
	};
	CGN_MUST(route_policy_find(cgn_str_of(config_enum_text(cfg->router.policy)), &out->policy));
}
