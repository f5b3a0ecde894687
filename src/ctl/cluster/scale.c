/* SPDX-License-Identifier: Apache-2.0 */
/* scale: the autoscaler's facts and decisions. */
#include "base/json/json.h"
#include "base/pb/pb.h"
#include "cognitora/v1/control.pb-c.h"
#include "ctl/client.h"
#include "ctl/cluster/list.h"
#include "ctl/ctl.h"

#define DEFAULT_TIMEOUT (10 * CGN_SEC)

static const struct ctl_list_column models[] = {{"model", "MODEL", false}, {"role", "ROLE", false},
	{"ready", "READY", true}, {"coming", "COMING", true}, {"want", "WANT", true}, {"load", "LOAD", true},
	{"forecast", "FORECAST", true}, {"inflight", "INFLIGHT", true}, {"waiting", "WAITING", true},
	{"ttft_p90_ms", "TTFT P90 MS", true}, {"itl_p90_ms", "ITL P90 MS", true},
	{"wake_seconds", "WAKE S", true}, {"why", "WHY", false}};
static const struct ctl_list_column decisions[] = {{"at_unix_ms", "TIME", false}, {"model", "MODEL", false},
	{"role", "ROLE", false}, {"action", "ACTION", false}, {"by", "BY", true}, {"have", "HAVE", true},
	{"want", "WANT", true}, {"nodes", "NODES", false}, {"why", "WHY", false}, {"then", "THEN", false}};

static CGN_RC scale_show(struct cgn_str text, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf mode = {0}, target = {0};
	struct json_val doc = {.raw = {NULL, 0}}, v;
	CGN_TRY(json_parse(text, &doc, NULL, err));
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
	CGN_ON_EXIT(pb_free) Cognitora__V1__ScaleResponse *rs = NULL;
	Cognitora__V1__ScaleRequest rq = COGNITORA__V1__SCALE_REQUEST__INIT;
	struct ctl_call call = {.method = "Scale",
		.answer = &cognitora__v1__scale_response__descriptor,
		.request = &rq,
		.first = &rs};
	CGN_TRY(ctl_timeout(a, DEFAULT_TIMEOUT, &call.timeout, err));
	CGN_TRY(ctl_client_call(a, CTL_ROUTER, &call, err));
	return ctl_text_show(a, rs->json, scale_show, err);
}
