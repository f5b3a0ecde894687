/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/rules/cascade.h"

/* Write the model that the configuration calls |name|, which may be an alias, as step |i| of the chain. */
static bool step_fill(const struct config *cfg, struct cgn_arena *a, const char *name, struct gw_chain *out,
	size_t i)
{
	const struct config_model *m = config_model_find(cfg, name);
	bool own = m != NULL && m->confidence_threshold <= 0;
	out->models[i] = cgn_arena_str(a, cgn_str_of(m != NULL ? m->name : name));
	out->thresholds[i] = own ? m->confidence_threshold : cfg->router.cascade.confidence_threshold;
	return out->models[i].p != NULL;
}

static bool chain_fill(const struct config *cfg, struct cgn_arena *a, const char *const *small, size_t n,
	const char *large, struct gw_chain *out)
{
	CGN_MUST(n < CASCADE_MODELS);
	for (size_t i = 0; i <= n; i++)
		if (!step_fill(cfg, a, i < n ? small[i] : large, out, i))
			return false;
	out->n = (unsigned)n + 1;
	return true;
}

bool gw_cascade_rules_fill(const struct config *cfg, struct cgn_arena *a, struct gw_cascade_rules *out)
{
	const char *small = cfg->router.cascade.small_model, *large = cfg->router.cascade.large_model;
	*out = (struct gw_cascade_rules){.pregate = cfg->router.cascade.pregate,
		.share = cfg->router.cascade.calibration_share,
		.max_error = cfg->router.cascade.max_error,
		.tokens = cfg->router.cascade.tokens};
	if (!cfg->router.cascade.enabled)
		return true;
	struct gw_chain *v = cgn_arena_zero(a, (cfg->n_models + 1) * sizeof *v);
	out->chains = v;
	for (size_t i = 0; v != NULL && i < cfg->n_models; i++) {
		const struct config_model *m = &cfg->models[i];
		if (m->cascade.n > 0 &&
			!chain_fill(cfg, a, m->cascade.v, m->cascade.n, m->name, &v[out->n++]))
			return false;
	}
	if (v == NULL || small == NULL)
		return v != NULL;
	/* A chain of the model's own comes first. */
	return chain_fill(cfg, a, &small, 1, large, &v[out->n++]);
}

const struct gw_chain *gw_cascade_chain(const struct gw_cascade_rules *rules, struct cgn_str model)
{
	for (size_t i = 0; i < rules->n; i++)
		if (cgn_str_eq(rules->chains[i].models[rules->chains[i].n - 1], model))
			return &rules->chains[i];
	return NULL;
}
