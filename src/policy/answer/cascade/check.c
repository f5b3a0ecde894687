/* SPDX-License-Identifier: Apache-2.0 */
/* cascade: its settings. A chain has each model once. */
#include "policy/answer/cascade/cascade.h"

#include <math.h>

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

/* Say when a rise of the error to |to| is noticed. */
static void notice_put(double share, double from, double to, struct cgn_buf *out)
{
	double after = calibration_noticed_after(share, from, to);
	if (isinf(after))
		cgn_buf_fmt(out, "to %g %% by no alarm", 100 * to);
	else
		cgn_buf_fmt(out, "to %g %% after about %.0f requests", 100 * to, after);
}

static void cost_put(double share, double max_error, double needed, struct cgn_buf *out)
{
	const double from = max_error / 2;
	cgn_buf_fmt(out,
		"router.cascade: %.0f prompts at least, and up to %d, are asked again of both models before a small model answers clients; then %g %% of the gated prompts are, and all while errors are suspected. A rise of the error from %g %% is noticed ",
		needed, CALIBRATION_PAIRS, 100 * share, 100 * from);
	notice_put(share, from, max_error, out);
	cgn_buf_putz(out, ", ");
	notice_put(share, from, fmin(4 * from, 0.99), out);
	cgn_buf_fmt(out, ", and at most %d wrong answers pass after a small model turned always wrong",
		2 * CALIBRATION_CREDIT);
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
		cost_put(share, max_error, needed, out);
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
