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

/* ---- depth ---- */

struct wire {
	const uint8_t *p, *end;
};

/* Read a varint; returns false at the end of the bytes. protobuf-c refuses more than ten bytes. */
static bool varint_read(struct wire *w, uint64_t *out)
{
	*out = 0;
	for (unsigned shift = 0; w->p < w->end && shift < 70; shift += 7) {
		uint8_t c = *w->p++;
		*out |= shift < 64 ? (uint64_t)(c & 0x7f) << shift : 0;
		if (c < 0x80)
			return true;
	}
	return false;
}

enum depth { DEPTH_FINE, DEPTH_EXCEEDED, DEPTH_MALFORMED };

/* Judge whether messages of |type| lie at most |left| deep in |w|. Every byte is passed once. Malformed bytes are left to
 * protobuf-c, which refuses them before it goes deeper: its reader needs a whole message to descend. Only the field number
 * 0, which no message may have, it takes where the number has two bytes or more. */
static enum depth depth_judge(const ProtobufCMessageDescriptor *type, struct wire w, unsigned left)
{
	uint64_t key = 0, n = 0;
	while (varint_read(&w, &key)) {
		size_t skip = 0;
		enum depth inner = DEPTH_FINE;
		if ((uint32_t)key >> 3 == 0)
			return DEPTH_MALFORMED;
		switch (key & 7) {
		case 0:
			if (!varint_read(&w, &n))
				return DEPTH_FINE;
			break;
		case 1:
			skip = 8;
			break;
		case 5:
			skip = 4;
			break;
		case 2: {
			const ProtobufCFieldDescriptor *f =
				protobuf_c_message_descriptor_get_field(type, (unsigned)(key >> 3));
			if (!varint_read(&w, &n) || n > (uint64_t)(w.end - w.p))
				return DEPTH_FINE;
			skip = (size_t)n;
			if (f == NULL || f->type != PROTOBUF_C_TYPE_MESSAGE)
				break;
			if (left == 0)
				return DEPTH_EXCEEDED;
			inner = depth_judge(f->descriptor, (struct wire){w.p, w.p + skip}, left - 1);
			if (inner != DEPTH_FINE)
				return inner;
			break;
		}
		default:
			return DEPTH_FINE;
		}
		if (skip > (size_t)(w.end - w.p))
			return DEPTH_FINE;
		w.p += skip;
	}
	return DEPTH_FINE;
}

CGN_RC pb_unpack(const ProtobufCMessageDescriptor *type, struct cgn_str bytes, void *out_message,
	struct cgn_err *err)
{
	const uint8_t *from = (const uint8_t *)bytes.p;
	enum depth depth = bytes.n == 0
		? DEPTH_FINE
		: depth_judge(type, (struct wire){from, from + bytes.n}, PB_DEPTH_MAX);
	if (depth == DEPTH_MALFORMED)
		return CGN_FAIL(err, INVALID, "%s: it has a field of the number 0", type->short_name);
	if (depth == DEPTH_EXCEEDED)
		return CGN_FAIL(err, INVALID, "%s: messages within messages, more than %d deep",
			type->short_name, PB_DEPTH_MAX);
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
