/* SPDX-License-Identifier: Apache-2.0 */
/* node_json: a Node as proto3 JSON, the value of its key in etcd. */
#include "base/pb/pb_json.h"
#include "policy/node/proto/proto_priv.h"

#define NODE_JSON_MAX ((size_t)1024 * 1024)

void proto_node_to_json(const Cognitora__V1__Node *n, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	pb_json_put(&o, n, PB_JSON_PROTO3);
}

CGN_RC proto_node_from_json(struct cgn_str json, Cognitora__V1__Node **out, struct cgn_err *err)
{
	CGN_ON_EXIT(proto_node_free) Cognitora__V1__Node *n = NULL;
	if (json.n > NODE_JSON_MAX)
		return CGN_FAIL(err, INVALID, "Node: %zu bytes of JSON, at most %zu are read", json.n,
			NODE_JSON_MAX);
	CGN_TRY(pb_json_read(&cognitora__v1__node__descriptor, json, &n, err));
	CGN_TRY(proto_node_check(n, err));
	*out = CGN_TAKE(&n);
	return CGN_OK;
}
