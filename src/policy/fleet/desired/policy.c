/* SPDX-License-Identifier: Apache-2.0 */
/* policy: the settings of a RoutingPolicy, and cascades of ModelPools, in the configuration of the routers. */
#include "policy/fleet/desired/desired_priv.h"

#define MODELS_MAX 64 /* Chains, and thresholds; RoutingPolicy admits no more. */

void desired_toml_text(struct cgn_buf *b, const char *key, struct cgn_str value)
{
	struct json_out o = json_out_to(b); /* JSON's strings are TOML's. */
	cgn_buf_fmt(b, "%s = ", key);
	json_put_str(&o, value);
	cgn_buf_char(b, '\n');
}

/* Settings that are numbers, booleans or texts. |unit| not NULL: a duration. Rows of a section stand together. */
static void settings_put(struct json_val policy, struct cgn_buf *b)
{
	static const struct {
		const char *section, *group, *member, *key, *unit;
	} rows[] = {
		{"router.admission", "admission", "maxQueue", "max_queue", NULL},
		{"router.admission", "admission", "ttftSloMs", "ttft_slo", "ms"},
		{"router.admission", "admission", "queueTimeoutMs", "queue_timeout", "ms"},
		{"router.disagg", "disagg", "enabled", "enabled", NULL},
		{"router.disagg", "disagg", "colocateBelowTokens", "colocate_below_tokens", NULL},
		{"router.cascade", "cascade", "enabled", "enabled", NULL},
		{"router.cascade", "cascade", "smallModel", "small_model", NULL},
		{"router.cascade", "cascade", "largeModel", "large_model", NULL},
		{"router.cascade", "cascade", "gate", "gate", NULL},
		{"router.cascade", "cascade", "confidenceThreshold", "confidence_threshold", NULL},
		{"router.cascade", "cascade", "tokens", "tokens", NULL},
		{"router.cascade", "cascade", "pregate", "pregate", NULL},
		{"router.cascade", "cascade", "calibrationShare", "calibration_share", NULL},
		{"router.cascade", "cascade", "maxError", "max_error", NULL},
		{"router.cascade", "cascade", "judgeModel", "judge_model", NULL},
		{"router.cascade", "cascade", "judgeSimilarity", "judge_similarity", NULL},
	};
	const char *section = "";
	struct json_val v;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
		if (!desired_spec(policy, rows[i].group, rows[i].member, &v) ||
			(v.type != JSON_NUMBER && v.type != JSON_BOOL && v.type != JSON_STRING))
			continue;
		if (strcmp(section, rows[i].section) != 0)
			cgn_buf_fmt(b, "[%s]\n", rows[i].section);
		section = rows[i].section;
		if (v.type == JSON_STRING) {
			json_str_to(v, &text);
			desired_toml_text(b, rows[i].key, cgn_buf_view(&text));
			continue;
		}
		cgn_buf_fmt(b, rows[i].unit != NULL ? "%s = \"%.*s%s\"\n" : "%s = %.*s%s\n", rows[i].key,
			CGN_STR_ARG(v.raw), rows[i].unit != NULL ? rows[i].unit : "");
	}
}

/* Append |text|, a JSON string, as a TOML string. */
static void name_put(struct json_val text, struct cgn_buf *b)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf name = {.n = 0};
	struct json_out o = json_out_to(b);
	json_str_to(text, &name);
	json_put_str(&o, cgn_buf_view(&name));
}

/* ---- cascades of models ---- */

static bool is_same(struct json_val a, struct json_val b)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf x = {.n = 0}, y = {.n = 0};
	json_str_to(a, &x);
	json_str_to(b, &y);
	return cgn_str_eq(cgn_buf_view(&x), cgn_buf_view(&y));
}

/* Does the RoutingPolicy say this of |model| itself? |member|: chains or thresholds. */
static bool policy_names(const struct desired_routing *r, const char *member, struct json_val model)
{
	struct json_val list, v, named;
	if (r->policy == NULL)
		return false;
	if (strcmp(member, "chains") == 0 && desired_spec(*r->policy, "cascade", "largeModel", &v) &&
		v.type == JSON_STRING && is_same(v, model))
		return true;
	if (!desired_spec(*r->policy, "cascade", member, &list) || list.type != JSON_ARRAY)
		return false;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &v);)
		if (json_get(v, "model", &named) && named.type == JSON_STRING && is_same(named, model))
			return true;
	return false;
}

/* Does a pool before the |n|-th say this of its model? */
static bool pool_names(const struct desired_routing *r, size_t n, const char *member, struct json_val model)
{
	struct json_val v;
	for (size_t i = 0; i < n; i++)
		if (desired_spec(r->pools[i], "cascade", member, &v) &&
			desired_spec(r->pools[i], "model", NULL, &v) && v.type == JSON_STRING &&
			is_same(v, model))
			return true;
	return false;
}

/* Append the smaller models of one model. */
static void chain_write(struct json_val model, struct json_val smaller, struct cgn_buf *b)
{
	struct json_val v;
	bool first = true;
	name_put(model, b);
	cgn_buf_putz(b, ".cascade = [");
	for (struct json_iter it = json_iter_of(smaller); json_next_elem(&it, &v);) {
		if (v.type != JSON_STRING)
			continue;
		cgn_buf_putz(b, first ? "" : ", ");
		name_put(v, b);
		first = false;
	}
	cgn_buf_putz(b, "]\n");
}

static void threshold_write(struct json_val model, struct json_val threshold, struct cgn_buf *b)
{
	name_put(model, b);
	cgn_buf_fmt(b, ".confidence_threshold = %.*s\n", CGN_STR_ARG(threshold.raw));
}

static void chain_put(struct json_val chain, struct cgn_buf *b)
{
	struct json_val model, smaller;
	if (json_get(chain, "model", &model) && model.type == JSON_STRING &&
		json_get(chain, "smallModels", &smaller) && smaller.type == JSON_ARRAY)
		chain_write(model, smaller, b);
}

static void threshold_put(struct json_val threshold, struct cgn_buf *b)
{
	struct json_val model, v;
	if (json_get(threshold, "model", &model) && model.type == JSON_STRING &&
		json_get(threshold, "confidenceThreshold", &v) && v.type == JSON_NUMBER)
		threshold_write(model, v, b);
}

/* Call |put| for each element of spec.cascade.|member|. */
static void models_put(struct json_val policy, const char *member,
	void (*put)(struct json_val element, struct cgn_buf *b), struct cgn_buf *b)
{
	struct json_val list, v;
	unsigned n = 0;
	if (!desired_spec(policy, "cascade", member, &list) || list.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(list); n < MODELS_MAX && json_next_elem(&it, &v); n++)
		put(v, b);
}

/* Append the cascade of the |n|-th pool: of its model, the RoutingPolicy and pools before it count first. Returns true if it has a chain. */
static bool pool_put(const struct desired_routing *r, size_t n, struct cgn_buf *b)
{
	struct json_val model, v;
	bool chained = false;
	if (!desired_spec(r->pools[n], "model", NULL, &model) || model.type != JSON_STRING)
		return false;
	if (desired_spec(r->pools[n], "cascade", "smallModels", &v) && v.type == JSON_ARRAY &&
		!policy_names(r, "chains", model) && !pool_names(r, n, "smallModels", model)) {
		chain_write(model, v, b);
		chained = true;
	}
	if (desired_spec(r->pools[n], "cascade", "confidenceThreshold", &v) && v.type == JSON_NUMBER &&
		!policy_names(r, "thresholds", model) && !pool_names(r, n, "confidenceThreshold", model))
		threshold_write(model, v, b);
	return chained;
}

void desired_routing_put(const struct desired_routing *r, struct cgn_buf *b)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf models = {.n = 0};
	struct json_val v;
	bool chained = false;
	if (r->policy != NULL) {
		settings_put(*r->policy, b);
		/* A model may stand in both lists: dotted keys may come apart, sections may not. */
		models_put(*r->policy, "chains", chain_put, &models);
		models_put(*r->policy, "thresholds", threshold_put, &models);
	}
	for (size_t i = 0; i < r->n_pools; i++)
		chained = pool_put(r, i, &models) || chained;
	if (chained && (r->policy == NULL || !desired_spec(*r->policy, "cascade", NULL, &v)))
		cgn_buf_putz(b, "[router.cascade]\nenabled = true\n");
	if (models.n == 0)
		return;
	cgn_buf_putz(b, "[models]\n");
	cgn_buf_str(b, cgn_buf_view(&models));
	b->bad = b->bad || models.bad;
}
