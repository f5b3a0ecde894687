/* SPDX-License-Identifier: Apache-2.0 */
/* cascades: how sure the answers of small models are. */
#include "ctl/cluster/list.h"

static const struct ctl_list_column columns[] = {{"small", "SMALL", CTL_LIST_TEXT},
	{"large", "LARGE", CTL_LIST_TEXT}, {"state", "STATE", CTL_LIST_TEXT},
	{"compared", "COMPARED", CTL_LIST_SHORT}, {"different", "DIFFERENT", CTL_LIST_SHORT},
	{"error_least", "LEAST ERROR", CTL_LIST_SHORT}, {"error_most", "MOST ERROR", CTL_LIST_SHORT},
	{"ece", "ECE", CTL_LIST_SHORT}};

static CGN_RC cascades_show(struct json_val doc, struct cgn_err *err)
{
	if (!json_get_bool(doc, "calibrates", false))
		return CGN_FAIL(err, NOT_FOUND,
			"the router calibrates no cascade: set router.cascade.enabled and router.cascade.calibration_share, and restart it");
	return ctl_list_show(doc, "pairs", columns, CGN_COUNT(columns), err);
}

CGN_RC ctl_cluster_cascades(const struct ctl_args *a, struct cgn_err *err)
{
	return ctl_document_show(a, "Cascades", PROTO_DOCUMENT_CASCADES, cascades_show, err);
}
