/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as JSON of a message: an accepted message must be the same after writing and reading again, in both
 * styles. The first byte chooses the type. */
#include "base/pb/pb_json.h"

#include "cognitora/v1/agent.pb-c.h"
#include "cognitora/v1/control.pb-c.h"
#include "cognitora/v1/kv.pb-c.h"
#include "etcd/etcd.pb-c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCMessageDescriptor *const types[] = {&cognitora__v1__node__descriptor,
	&cognitora__v1__status_response__descriptor, &cognitora__v1__generate_chunk__descriptor,
	&cognitora__v1__watch_event__descriptor, &cognitora__v1__kv_get_chunk__descriptor,
	&etcdserverpb__watch_response__descriptor};

static void message_again(const ProtobufCMessage *m, enum pb_json_style style)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0}, packed = {0}, repacked = {0};
	CGN_ON_EXIT(pb_free) ProtobufCMessage *again = NULL;
	struct json_out o = json_out_to(&text);
	pb_json_put(&o, m, style);
	CGN_MUST(cgn_ok(pb_json_read(m->descriptor, cgn_buf_view(&text), &again, NULL)));
	pb_pack(m, &packed);
	pb_pack(again, &repacked);
	CGN_MUST(cgn_str_eq(cgn_buf_view(&packed), cgn_buf_view(&repacked)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	CGN_ON_EXIT(pb_free) ProtobufCMessage *m = NULL;
	if (size == 0)
		return 0;
	struct cgn_str text = {(const char *)data + 1, size - 1};
	if (!cgn_ok(pb_json_read(types[data[0] % CGN_COUNT(types)], text, &m, NULL)))
		return 0;
	message_again(m, PB_JSON_PROTO3);
	message_again(m, PB_JSON_PLAIN);
	return 0;
}
