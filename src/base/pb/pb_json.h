/* SPDX-License-Identifier: Apache-2.0 */
/* pb_json: any generated protobuf message as JSON and back, by its descriptor. */
#pragma once
#include "base/json/json.h"
#include "base/pb/pb.h"

/* The most fields that a message type may have. */
#define PB_JSON_FIELDS 32

/* The most bytes of a word of an enumeration, with the final NUL. */
#define PB_ENUM_WORD 64

enum pb_json_style {
	PB_JSON_PROTO3, /* the standard mapping: lowerCamelCase names, 64-bit integers as strings, no defaults */
	PB_JSON_PLAIN, /* for admin ports and command lines: the .proto's names, numbers, defaults as well, no deprecated fields */
};

/* Append |message| (any generated struct) as one value. Enums are written by name, bytes in base64, numbers
 * that are not finite as null. Submessages that are not set are left out in both styles. */
void pb_json_put(struct json_out *o, const void *message, enum pb_json_style style);
/* Append fields of |message|, in plain style, to the object that is open in |o|. |select| lists them in the
 * order of the output, separated by single spaces: "field", "key=field" for another key, "field{field field}"
 * for some fields of a submessage or of each element of a repeated one. After a name, "?" leaves the field out
 * while it is not set, "%" leaves a real number out that is not a number, "!" writes null while it is not set, and "*" writes the members of a submessage without a key and an
 * object of their own, "~" writes the word of an enumeration (pb_enum_word), and "@" writes repeated submessages as an object: the key of each is
 * its first field, a string, and "@{=field}" writes one field of each in the place of an object. A name that the message does not have is a bug of the caller. */
void pb_json_members(struct json_out *o, const void *message, const char *select);
/* As pb_json_members, as one object. */
void pb_json_select(struct json_out *o, const void *message, const char *select);

/* Write the name of an enumeration's value for people: what follows the first '_', in lower case. A value that |type|
 * does not have is written as its zero. Returns |out|. */
const char *pb_enum_word(const ProtobufCEnumDescriptor *type, int value, char out[PB_ENUM_WORD]);

/* Read |json| (proto3 mapping) as a new message of |type| into *(Generated__Type **)out_message; free it with
 * pb_free. Both spellings of a name, numbers for 64-bit integers and numbers for enums are accepted; null
 * stands for an absent member; unknown members and unknown names of enumerations are skipped. CGN_INVALID names the field that is wrong, or
 * says that the message would take more memory than 16 times the text plus 64 KiB; *out_message is then
 * untouched. */
CGN_RC pb_json_read(const ProtobufCMessageDescriptor *type, struct cgn_str json, void *out_message,
	struct cgn_err *err);
