/* SPDX-License-Identifier: Apache-2.0 */
/* kept: the calibrations in a file of cluster.state_dir over restarts, and whether the models are still those
 * that they were learned of. On the control loop. */
#include <stdlib.h>

#include "base/log/log.h"
#include "base/mix/mix.h"
#include "base/seal/seal.h"
#include "joint/cluster/statefile/statefile.h"
#include "policy/node/engine/engine.h"
#include "router/request/calibration/calibration_priv.h"

#define KEPT_KIND   "cognitora-cascade"
#define KEPT_FORMAT 1
#define FILE_MAX    ((size_t)1 << 20) /* CALIBRATION_MODELS pairs fit three times. */
#define EVERY       (5 * CGN_SEC)

/* ---- the same models? ---- */

/* Return the hash of the settings that decide what an answer's doubt is and when an answer counts as wrong. */
static uint64_t basis_of(const struct gw_calibrations *c, const struct gw_cascade_rules *rules)
{
	return mix64(c->judge ^ mix64(rules->tokens));
}

static uint64_t mark_of(const struct view_model *m, size_t i)
{
	const char *kind = m->kinds[i] != NULL ? config_enum_text(m->kinds[i]->kind) : "";
	uint64_t h = mix_fnv1a(MIX_FNV1A, kind, strlen(kind) + 1);
	return mix64(mix_fnv1a(h, m->served[i].text.p, m->served[i].text.n));
}

/* Is the model (0: small, 1: large) served by engines that are known of the pair? Where none is known, they are noted. */
static bool model_fits(struct gw_calibrations *c, struct calibration_known *k, unsigned which,
	const struct cluster_view *v)
{
	const struct view_model *m = view_model_find(v, cgn_str_of(which == 0 ? k->small : k->large));
	bool fresh = k->n_marks[which] == 0, fits = true;
	c->changed |= fresh && m != NULL && m->n_ready > 0;
	for (size_t i = 0; m != NULL && fits && i < m->n_ready; i++) {
		uint64_t mark = mark_of(m, i);
		if (fresh)
			calibration_known_mark(k, which, mark);
		else
			fits = calibration_known_has(k, which, mark);
	}
	return fits;
}

static bool chain_has(const struct gw_cascade_rules *rules, const struct calibration_known *k)
{
	const struct gw_chain *chain = gw_cascade_chain(rules, cgn_str_of(k->large));
	for (unsigned i = 0; chain != NULL && i + 1 < chain->n; i++)
		if (cgn_str_is(chain->models[i], k->small))
			return true;
	return false;
}

/* Return why the calibration of the pair no longer counts; NULL: it counts. */
static const char *pair_trouble(struct gw_calibrations *c, struct calibration_known *k,
	const struct cluster_view *v, const struct gw_cascade_rules *rules)
{
	if (!chain_has(rules, k))
		return "no cascade has these models any more";
	if (k->basis != basis_of(c, rules))
		return "router.cascade.tokens, judge_model or judge_similarity has changed";
	if (!model_fits(c, k, 0, v))
		return "another engine serves the small model";
	return model_fits(c, k, 1, v) ? NULL : "another engine serves the large model";
}

static void pair_forget(struct gw_calibrations *c, struct calibration_known *k, const char *why)
{
	if (k->calibration.n > 0 || k->calibration.state != CALIBRATION_LEARNS) {
		cgn_log(WARN, "cascade.forgotten", F_STR("small", k->small), F_STR("large", k->large),
			F_U64("compared", k->same + k->different), F_STR("why", why),
			F_STR("then", "the larger model is asked at once until it is learned again"));
		c->changed = true;
	}
	calibration_known_forget(k);
	calibration_report(c, k);
}

void gw_calibrations_follow(struct gw_calibrations *c, const struct cluster_view *v,
	const struct gw_cascade_rules *rules)
{
	if (c == NULL)
		return;
	calibrations_lock(c);
	c->basis = basis_of(c, rules);
	c->share = rules->share;
	c->max_error = rules->max_error;
	for (size_t i = 0; i < c->n_pairs; i++) {
		const char *why = pair_trouble(c, c->pairs[i], v, rules);
		if (why == NULL)
			continue;
		pair_forget(c, c->pairs[i], why);
		c->pairs[i]->basis = c->basis;
		for (unsigned which = 0; which < 2; which++)
			(void)model_fits(c, c->pairs[i], which, v);
	}
	for (size_t i = c->n_pairs; i-- > 0;)
		if (!chain_has(rules, c->pairs[i])) {
			free(c->pairs[i]);
			c->pairs[i] = c->pairs[--c->n_pairs];
		}
	calibrations_unlock(c);
}

/* ---- the file ---- */

/* The lock is held. */
static void pairs_text(struct gw_calibrations *c, struct cgn_buf *out)
{
	seal_begin(out, KEPT_KIND, KEPT_FORMAT);
	for (size_t i = 0; i < c->n_pairs; i++)
		calibration_known_put(c->pairs[i], out);
	seal_end(out);
	c->changed = false;
}

static void pairs_write(struct cgn_timer *t)
{
	struct gw_calibrations *c = CGN_CONTAINER(t, struct gw_calibrations, write_timer);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	calibrations_lock(c);
	bool write = c->changed && !statefile_is_busy(c->file);
	if (write)
		pairs_text(c, &text);
	calibrations_unlock(c);
	if (write)
		statefile_write(c->file, &text);
	cgn_timer_set(t, EVERY);
}

/* Take the pairs of |lines|. On failure some may be taken. */
static CGN_RC lines_take(struct gw_calibrations *c, struct cgn_str lines, struct cgn_err *err)
{
	while (lines.n > 0) {
		if (c->n_pairs == CALIBRATION_MODELS)
			return CGN_FAIL(err, INVALID, "more than %d pairs of models", CALIBRATION_MODELS);
		struct calibration_known *k = c->pairs[c->n_pairs++] = CGN_NEW(struct calibration_known);
		CGN_TRY(calibration_known_take(&lines, k, err));
	}
	return CGN_OK;
}

static void pairs_report(struct gw_calibrations *c)
{
	for (size_t i = 0; i < c->n_pairs; i++) {
		const struct calibration_known *k = c->pairs[i];
		cgn_log(INFO, "cascade.restored", F_STR("small", k->small), F_STR("large", k->large),
			F_STR("state", calibration_state_text(k->calibration.state)),
			F_U64("kept", k->calibration.n), F_U64("compared", k->same + k->different));
		calibration_report(c, k);
	}
}

void gw_calibrations_keep(struct gw_calibrations *c, struct cgn_loop *l, const char *path)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct cgn_str lines;
	struct cgn_err why;
	c->file = statefile_open(l, path, "calibration of cascades");
	cgn_timer_init(&c->write_timer, l, pairs_write);
	cgn_timer_set(&c->write_timer, EVERY);
	if (!statefile_read(c->file, FILE_MAX, &text))
		return;
	calibrations_lock(c);
	cgn_rc rc = seal_open(cgn_buf_view(&text), KEPT_KIND, KEPT_FORMAT, &lines, &why);
	if (cgn_ok(rc))
		rc = lines_take(c, lines, &why);
	if (!cgn_ok(rc)) {
		calibrations_drop(c);
		statefile_set_aside(c->file, why.msg);
	}
	pairs_report(c);
	calibrations_unlock(c);
}

void calibrations_kept_close(struct gw_calibrations *c)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	if (c->file == NULL)
		return;
	cgn_timer_cancel(&c->write_timer);
	bool write = c->changed;
	if (write)
		pairs_text(c, &text);
	statefile_close(&c->file, write ? &text : NULL);
}
