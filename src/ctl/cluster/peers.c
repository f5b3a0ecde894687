/* SPDX-License-Identifier: Apache-2.0 */
/* peers: the other sides that requests may leave the cluster for. */
#include "base/json/json.h"
#include "base/pb/pb.h"
#include "cognitora/v1/control.pb-c.h"
#include "ctl/client.h"
#include "ctl/cluster/list.h"

#define DEFAULT_TIMEOUT (10 * CGN_SEC)

static const struct ctl_list_column columns[] = {{"peer", "PEER", false}, {"kind", "KIND", false},
	{"state", "STATE", false}, {"open", "OPEN", true}, {"ttft_ms", "TTFT MS", true},
	{"rtt_ms", "RTT MS", true}, {"generation", "GENERATION", true}, {"summary_age_s", "AGE S", true},
	{"blocks", "BLOCKS", true}, {"summary_bytes", "BYTES", true}, {"trust", "TRUST", true},
	{"spent_today", "SPENT TODAY", true}, {"left_today", "LEFT", true}, {"url", "URL", false}};

static CGN_RC peers_show(struct cgn_str text, struct cgn_err *err)
{
	struct json_val doc = {.raw = {NULL, 0}};
	CGN_TRY(json_parse(text, &doc, NULL, err));
	return ctl_list_show(doc, "peers", columns, CGN_COUNT(columns), err);
}

CGN_RC ctl_cluster_peers(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Cognitora__V1__PeersResponse *rs = NULL;
	Cognitora__V1__PeersRequest rq = COGNITORA__V1__PEERS_REQUEST__INIT;
	struct ctl_call call = {.method = "Peers",
		.answer = &cognitora__v1__peers_response__descriptor,
		.request = &rq,
		.first = &rs};
	CGN_TRY(ctl_timeout(a, DEFAULT_TIMEOUT, &call.timeout, err));
	CGN_TRY(ctl_client_call(a, CTL_ROUTER, &call, err));
	return ctl_text_show(a, rs->json, peers_show, err);
}
