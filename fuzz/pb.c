/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz pb: any bytes as each kind of message that a port reads from outside. An accepted message must be the same after
 * packing and unpacking. The first byte chooses the type. */
#include "base/pb/pb.h"

#include "cognitora/v1/agent.pb-c.h"
#include "cognitora/v1/control.pb-c.h"
#include "cognitora/v1/kv.pb-c.h"
#include "cognitora/v1/router.pb-c.h"
#include "envoy/ext_proc.pb-c.h"
#include "etcd/etcd.pb-c.h"
#include "grpc/health.pb-c.h"
#include "otlp/otlp.pb-c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCMessageDescriptor *const types[] = {&extproc__processing_request__descriptor,
	&extproc__struct__descriptor, &cognitora__v1__announce_request__descriptor,
	&cognitora__v1__leave_request__descriptor, &cognitora__v1__cordon_request__descriptor,
	&cognitora__v1__explain_request__descriptor, &cognitora__v1__set_policy_request__descriptor,
	&cognitora__v1__invite_request__descriptor, &cognitora__v1__join_request__descriptor,
	&cognitora__v1__change_model_request__descriptor, &cognitora__v1__stores_request__descriptor,
	&cognitora__v1__watch_request__descriptor, &cognitora__v1__watch_event__descriptor,
	&cognitora__v1__status_response__descriptor, &etcdserverpb__range_response__descriptor,
	&etcdserverpb__watch_response__descriptor, &grpc__health__v1__health_check_request__descriptor,
	&cgn_otlp__export_response__descriptor};

static void message_again(const ProtobufCMessage *m)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf packed = {0}, repacked = {0};
	CGN_ON_EXIT(pb_free) ProtobufCMessage *again = NULL;
	pb_pack(m, &packed);
	CGN_MUST(cgn_ok(pb_unpack(m->descriptor, cgn_buf_view(&packed), &again, NULL)));
	pb_pack(again, &repacked);
	CGN_MUST(cgn_str_eq(cgn_buf_view(&packed), cgn_buf_view(&repacked)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	CGN_ON_EXIT(pb_free) ProtobufCMessage *m = NULL;
	if (size == 0)
		return 0;
	struct cgn_str bytes = {(const char *)data + 1, size - 1};
	if (cgn_ok(pb_unpack(types[data[0] % CGN_COUNT(types)], bytes, &m, NULL)))
		message_again(m);
	return 0;
}
