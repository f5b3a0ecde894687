/* SPDX-License-Identifier: Apache-2.0 */
/* pb: protobuf-c with the buffers and errors of base, and with bounds on the memory and on the depth that a
 * sender can claim. */
#pragma once
#include <protobuf-c/protobuf-c.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

/* Messages within messages that are read; protobuf's own libraries have this limit too. protobuf-c unpacks and frees
 * by recursion, about 2 KB of stack a level. */
#define PB_DEPTH_MAX 100

/* Append the packed message (any generated struct). Errors are the buffer's. */
void pb_pack(const void *message, struct cgn_buf *out);
/* Unpack a new message of that type into *(Generated__Type **)out_message, which is untouched on failure.
 * CGN_INVALID names the type. Allocation is bounded by 16 times the bytes plus 64 KiB, however the sender
 * nests empty messages; deeper messages than PB_DEPTH_MAX are CGN_INVALID.
 *   CGN_ON_EXIT(pb_free) Cognitora__V1__LeaveRequest *rq = NULL;
 *   CGN_TRY(pb_unpack(&cognitora__v1__leave_request__descriptor, bytes, &rq, err)); */
CGN_RC pb_unpack(const ProtobufCMessageDescriptor *type, struct cgn_str bytes, void *out_message,
	struct cgn_err *err);
/* Return |z| as a member of a message that is only packed or printed: protobuf-c has no const. */
static inline char *pb_text(const char *z)
{
	return (char *)(uintptr_t)z;
}
/* |take_message|: the address of a message pointer; the message may be NULL, the pointer is NULL
 * afterwards. */
void pb_free(void *take_message);
