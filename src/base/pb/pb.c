/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pb/pb.h"

#include <stdlib.h>
#include <string.h>

void pb_pack(const void *message, struct cgn_buf *out)
{
	size_t n = protobuf_c_message_get_packed_size(message);
	if (n == 0)
		return;
	uint8_t *to = (uint8_t *)cgn_buf_room(out, n);
	if (to != NULL)
		cgn_buf_grew(out, protobuf_c_message_pack(message, to));
}

/* An empty submessage takes two bytes on the wire and a hundred in memory, so the memory that a sender can
 * make us allocate needs its own bound. */
static void *budget_alloc(void *budget, size_t n)
{
	size_t *bytes_left = budget;
	if (n > *bytes_left)
		return NULL;
	*bytes_left -= n;
	return malloc(n);
}

static void budget_free(void *budget, void *p)
{
	(void)budget;
	free(p);
}

CGN_RC pb_unpack(const ProtobufCMessageDescriptor *type, struct cgn_str bytes, void *out_message,
	struct cgn_err *err)
{
	size_t budget = bytes.n > (SIZE_MAX >> 5) ? SIZE_MAX : bytes.n * 16 + (size_t)64 * 1024;
	ProtobufCAllocator bounded = {.alloc = budget_alloc, .free = budget_free, .allocator_data = &budget};
	ProtobufCMessage *m = protobuf_c_message_unpack(type, &bounded, bytes.n, (const uint8_t *)bytes.p);
	if (m == NULL)
		return CGN_FAIL(err, INVALID, "%s: %zu bytes that are not this message", type->short_name,
			bytes.n);
	memcpy(out_message, &m, sizeof m);
	return CGN_OK;
}

void pb_free(void *take_message)
{
	ProtobufCMessage *m;
	memcpy(&m, take_message, sizeof m);
	if (m != NULL)
		protobuf_c_message_free_unpacked(m, NULL);
	m = NULL;
	memcpy(take_message, &m, sizeof m);
}
