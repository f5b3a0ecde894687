/* SPDX-License-Identifier: Apache-2.0 */
/* cascades: how sure the answers of small models are. */
#include "base/json/json.h"
#include "base/pb/pb.h"
#include "cognitora/v1/control.pb-c.h"
#include "ctl/client.h"
#include "ctl/cluster/list.h"

#define DEFAULT_TIMEOUT (10 * CGN_SEC)

static const struct ctl_list_column columns[] = {{"small", "SMALL", false}, {"large", "LARGE", false},
	{"state", "STATE", false}, {"compared", "COMPARED", true}, {"different", "DIFFERENT", true},
	{"error_least", "LEAST ERROR", true}, {"error_most", "MOST ERROR", true}, {"ece", "ECE", true}};

static CGN_RC cascades_show(struct cgn_str text, struct cgn_err *err)
{
	struct json_val doc = {.raw = {NULL, 0}};
	CGN_TRY(json_parse(text, &doc, NULL, err));
	if (!json_get_bool(doc, "calibrates", false))
		return CGN_FAIL(err, NOT_FOUND,
			"the router calibrates no cascade: set router.cascade.enabled and router.cascade.calibration_share, and restart it");
	return ctl_list_show(doc, "pairs", columns, CGN_COUNT(columns), err);
}

CGN_RC ctl_cluster_cascades(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Cognitora__V1__CascadesResponse *rs = NULL;
	Cognitora__V1__CascadesRequest rq = COGNITORA__V1__CASCADES_REQUEST__INIT;
	struct ctl_call call = {.method = "Cascades",
		.answer = &cognitora__v1__cascades_response__descriptor,
		.request = &rq,
		.first = &rs};
	CGN_TRY(ctl_timeout(a, DEFAULT_TIMEOUT, &call.timeout, err));
	CGN_TRY(ctl_client_call(a, CTL_ROUTER, &call, err));
	return ctl_text_show(a, rs->json, cascades_show, err);
}
