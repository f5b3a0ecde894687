/* SPDX-License-Identifier: Apache-2.0 */
/* cascade: its settings. A chain has each model once. */
#include "policy/answer/cascade/cascade.h"
#include "policy/config/config.h"

/* A model is not asked twice for one answer. */
static cgn_rc check_chain(const struct config *c, size_t i, struct cgn_err *err)
{
	const struct config_model *m = &c->models[i];
	for (size_t k = 0; k < m->cascade.n; k++) {
		bool again = config_model_find(c, m->cascade.v[k]) == m;
		for (size_t j = 0; j < k; j++)
			again = again || strcmp(m->cascade.v[j], m->cascade.v[k]) == 0;
		if (again)
			return CGN_FAIL(err, INVALID,
				"%s: the cascade of model \"%.100s\" has \"%.100s\" twice: name each smaller model once, and not the model itself",
				config_model_origin(c, i, "cascade"), m->name, m->cascade.v[k]);
	}
	return CGN_OK;
}

void cascade_cost_put(const struct config *c, struct cgn_buf *out)
{
	double share = c->router.cascade.calibration_share, max_error = c->router.cascade.max_error;
	double needed = calibration_needed(max_error);
	if (!c->router.cascade.enabled)
		return;
	if (share <= 0)
		cgn_buf_putz(out,
			"router.cascade.calibration_share is 0: nothing is learned of small models, and all of their answers that reach confidence_threshold pass, right or wrong");
	else if (needed > CALIBRATION_PAIRS)
		cgn_buf_fmt(out,
			"router.cascade.max_error = %g would need %.0f comparisons, and %d are kept: no answer of a small model passes",
			max_error, needed, CALIBRATION_PAIRS);
	else
		cgn_buf_fmt(out,
			"router.cascade: %.0f prompts at least, and up to %d, are asked again of both models before a small model answers clients; then %g %% of the gated prompts are, and up to %d answers pass before a change is noticed",
			needed, CALIBRATION_PAIRS, 100 * share, 2 * CALIBRATION_CREDIT);
}

CGN_RC cascade_check_config(const struct config *c, struct cgn_err *err)
{
	const char *small = c->router.cascade.small_model, *large = c->router.cascade.large_model;
	for (size_t i = 0; i < c->n_models; i++)
		CGN_TRY(check_chain(c, i, err));
	if ((small == NULL) != (large == NULL))
		return CGN_FAIL(err, INVALID,
			"%s: router.cascade has a %s and no %s: set both, or models.NAME.cascade",
			config_origin(c,
				small != NULL ? "router.cascade.small_model" : "router.cascade.large_model"),
			small != NULL ? "small_model" : "large_model",
			small != NULL ? "large_model" : "small_model");
	if (small != NULL && strcmp(small, large) == 0)
		return CGN_FAIL(err, INVALID,
			"%s: router.cascade.small_model and large_model are both \"%.100s\"",
			config_origin(c, "router.cascade.small_model"), small);
	return CGN_OK;
}
