/* SPDX-License-Identifier: Apache-2.0 */
/* pb_json, inside: what its writer and its reader share. */
#pragma once
#include "base/pb/pb_json.h"

/* The most bytes of a field's name, with the final NUL. */
#define PB_JSON_NAME 64

enum pb_json_kind {
	PB_JSON_INTEGER,
	PB_JSON_REAL,
	PB_JSON_BOOL,
	PB_JSON_ENUM,
	PB_JSON_STRING,
	PB_JSON_BYTES,
	PB_JSON_MESSAGE
};
/* How a generated struct, or the array of a repeated field, holds one value. */
struct pb_json_type {
	enum pb_json_kind kind;
	bool is_signed;
	size_t size; /* Bytes of a value. */
};
const struct pb_json_type *pb_json_type(const ProtobufCFieldDescriptor *f);
/* The field's name in lowerCamelCase. */
void pb_json_name(const ProtobufCFieldDescriptor *f, char out[PB_JSON_NAME]);
