/* SPDX-License-Identifier: Apache-2.0 */
/* pb: protobuf-c with our buffers and our errors, and with a bound on what a sender can make us allocate. */
#pragma once
#include <protobuf-c/protobuf-c.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

/* Append the packed message (any generated struct). Errors are the buffer's. */
void pb_pack(const void *message, struct cgn_buf *out);
/* A new message of that type into *(Generated__Type **)out_message; untouched on failure. CGN_INVALID names
 * the type. What it allocates is bounded by 16 times the bytes plus 64 KiB, however the sender nests empty
 * things.
 *   CGN_ON_EXIT(pb_free) Cognitora__V1__LeaveRequest *rq = NULL;
 *   CGN_TRY(pb_unpack(&cognitora__v1__leave_request__descriptor, bytes, &rq, err)); */
CGN_RC pb_unpack(const ProtobufCMessageDescriptor *type, struct cgn_str bytes, void *out_message,
	struct cgn_err *err);
void pb_free(void *take_message); /* address of the pointer; NULL-safe, leaves NULL */
