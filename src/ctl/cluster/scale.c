/* SPDX-License-Identifier: Apache-2.0 */
/* scale: the autoscaler's facts and decisions. */
#include "ctl/cluster/list.h"

static const struct ctl_list_column models[] = {{"model", "MODEL", CTL_LIST_TEXT},
	{"role", "ROLE", CTL_LIST_TEXT}, {"ready", "READY", CTL_LIST_SHORT},
	{"coming", "COMING", CTL_LIST_SHORT}, {"want", "WANT", CTL_LIST_SHORT},
	{"load", "LOAD", CTL_LIST_SHORT}, {"forecast", "FORECAST", CTL_LIST_SHORT},
	{"inflight", "INFLIGHT", CTL_LIST_SHORT}, {"waiting", "WAITING", CTL_LIST_SHORT},
	{"ttft_p90_ms", "TTFT P90 MS", CTL_LIST_SHORT}, {"itl_p90_ms", "ITL P90 MS", CTL_LIST_SHORT},
	{"wake_seconds", "WAKE S", CTL_LIST_SHORT}, {"why", "WHY", CTL_LIST_TEXT}};
static const struct ctl_list_column decisions[] = {{"at_unix_ms", "TIME", CTL_LIST_TIME},
	{"model", "MODEL", CTL_LIST_TEXT}, {"role", "ROLE", CTL_LIST_TEXT},
	{"action", "ACTION", CTL_LIST_TEXT}, {"by", "BY", CTL_LIST_SHORT}, {"have", "HAVE", CTL_LIST_SHORT},
	{"want", "WANT", CTL_LIST_SHORT}, {"nodes", "NODES", CTL_LIST_TEXT}, {"why", "WHY", CTL_LIST_TEXT},
	{"then", "THEN", CTL_LIST_TEXT}};

static CGN_RC scale_show(struct json_val doc, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf mode = {0}, target = {0};
	struct json_val v;
	if (json_get(doc, "mode", &v))
		json_str_to(v, &mode);
	(void)printf("router.autoscaler: %s", mode.n > 0 ? cgn_buf_z(&mode) : "unknown");
	if (json_get(doc, "target", &v))
		json_str_to(v, &target);
	if (target.n > 0)
		(void)printf(", target %s", cgn_buf_z(&target));
	(void)printf("\n");
	CGN_TRY(ctl_list_show(doc, "models", models, CGN_COUNT(models), err));
	(void)printf("\nlast decisions, newest first (UTC)\n");
	return ctl_list_show(doc, "decisions", decisions, CGN_COUNT(decisions), err);
}

CGN_RC ctl_cluster_scale(const struct ctl_args *a, struct cgn_err *err)
{
	return ctl_document_show(a, "Scale", PROTO_DOCUMENT_SCALE, scale_show, err);
}
