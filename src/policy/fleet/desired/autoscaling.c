/* SPDX-License-Identifier: Apache-2.0 */
/* autoscaling: the HorizontalPodAutoscaler of a ModelPool. It scales the ModelPool and not the StatefulSet: replicas of the ModelPool
 * are then the autoscaler's to write, those of the StatefulSet the operator's, and no field has two writers. */
#include "policy/fleet/desired/desired_priv.h"

/* |metric|: mean of the pods' own metrics of this name; NULL: use of the processor, in percent of the request. */
static const struct autoscaling_metric {
	const char *word, *metric;
} metrics[] = {
	{"running", "cgn_engine_requests_running"},
	{"waiting", "cgn_engine_requests_waiting"},
	{"cpu", NULL},
};

static const struct autoscaling_metric *metric_find(struct cgn_str word)
{
	for (size_t i = 0; i < CGN_COUNT(metrics); i++)
		if (cgn_str_is(word, metrics[i].word))
			return &metrics[i];
	return NULL;
}

static void pods_metric(struct json_out *o, const char *metric, uint64_t target)
{
	char mean[24];
	(void)snprintf(mean, sizeof mean, "%llu", (unsigned long long)target);
	json_key_z(o, "type", "Pods");
	json_key_open(o, "pods", '{');
	json_key_open(o, "metric", '{');
	json_key_z(o, "name", metric);
	json_close(o, '}');
	json_key_open(o, "target", '{');
	json_key_z(o, "type", "AverageValue");
	json_key_z(o, "averageValue", mean);
	json_close(o, '}');
	json_close(o, '}');
}

static void cpu_metric(struct json_out *o, uint64_t target)
{
	json_key_z(o, "type", "Resource");
	json_key_open(o, "resource", '{');
	json_key_z(o, "name", "cpu");
	json_key_open(o, "target", '{');
	json_key_z(o, "type", "Utilization");
	json_key_u64(o, "averageUtilization", target);
	json_close(o, '}');
	json_close(o, '}');
}

CGN_RC desired_autoscaling(const struct desired_owner *w, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf word = {.n = 0};
	struct json_val v;
	uint64_t least = desired_number(w->resource, "autoscaling", "min", 1),
		 most = desired_number(w->resource, "autoscaling", "max", 0),
		 target = desired_number(w->resource, "autoscaling", "target", 0);
	if (!desired_spec(w->resource, "autoscaling", NULL, &v))
		return CGN_OK;
	desired_text(w->resource, "autoscaling", "metric", "running", &word);
	const struct autoscaling_metric *m = metric_find(cgn_buf_view(&word));
	if (m == NULL || least == 0 || most < least || target == 0)
		return CGN_FAIL(err, INVALID,
			"spec.autoscaling needs min (at least 1), max (at least min), target (at least 1), and metric running, waiting or cpu");
	struct json_out o = desired_begin(w, DESIRED_HPA, w->name, "pool");
	json_key_open(&o, "spec", '{');
	json_key_open(&o, "scaleTargetRef", '{');
	json_key_z(&o, "apiVersion", desired_kinds[DESIRED_POOL].api);
	json_key_z(&o, "kind", desired_kinds[DESIRED_POOL].kind);
	json_key_z(&o, "name", w->name);
	json_close(&o, '}');
	json_key_u64(&o, "minReplicas", least);
	json_key_u64(&o, "maxReplicas", most);
	json_key_open(&o, "metrics", '[');
	json_open(&o, '{');
	if (m->metric != NULL)
		pods_metric(&o, m->metric, target);
	else
		cpu_metric(&o, target);
	json_close(&o, '}');
	json_close(&o, ']');
	json_close(&o, '}');
	desired_end(w, &o);
	return CGN_OK;
}
