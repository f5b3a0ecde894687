/* SPDX-License-Identifier: Apache-2.0 */
/* peers: the other sides that requests may leave the cluster for. */
#include "ctl/cluster/list.h"

static const struct ctl_list_column columns[] = {{"peer", "PEER", CTL_LIST_TEXT},
	{"kind", "KIND", CTL_LIST_TEXT}, {"state", "STATE", CTL_LIST_TEXT}, {"open", "OPEN", CTL_LIST_SHORT},
	{"ttft_ms", "TTFT MS", CTL_LIST_SHORT}, {"rtt_ms", "RTT MS", CTL_LIST_SHORT},
	{"generation", "GENERATION", CTL_LIST_SHORT}, {"summary_age_s", "AGE S", CTL_LIST_SHORT},
	{"blocks", "BLOCKS", CTL_LIST_SHORT}, {"summary_bytes", "BYTES", CTL_LIST_SHORT},
	{"trust", "TRUST", CTL_LIST_SHORT}, {"spent_today", "SPENT TODAY", CTL_LIST_SHORT},
	{"left_today", "LEFT", CTL_LIST_SHORT}, {"url", "URL", CTL_LIST_TEXT}};

static CGN_RC peers_show(struct json_val doc, struct cgn_err *err)
{
	return ctl_list_show(doc, "peers", columns, CGN_COUNT(columns), err);
}

CGN_RC ctl_cluster_peers(const struct ctl_args *a, struct cgn_err *err)
{
	return ctl_document_show(a, "Peers", PROTO_DOCUMENT_PEERS, peers_show, err);
}
