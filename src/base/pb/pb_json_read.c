/* SPDX-License-Identifier: Apache-2.0 */
/* pb_json, reading. The message grows in place: after a failure pb_free can free it. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/codec/codec.h"
#include "base/pb/pb_json_priv.h"

struct reader {
	size_t budget; /* Bytes that the message may still allocate. */
	struct cgn_err *err;
};

static CGN_RC message_read(struct reader *r, struct json_val v, const ProtobufCMessageDescriptor *type,
	ProtobufCMessage **out);

static CGN_RC field_refuse(struct reader *r, const ProtobufCFieldDescriptor *f, const char *expected)
{
	char name[PB_JSON_NAME];
	pb_json_name(f, name);
	return CGN_FAIL(r->err, INVALID, "\"%s\" must be %s", name, expected);
}

/* Allocate zeroed bytes from the budget. */
static CGN_RC memory_take(struct reader *r, size_t n, void **out)
{
	if (n > r->budget)
		return CGN_FAIL(r->err, INVALID, "the message would take too much memory for its size");
	r->budget -= n;
	*out = calloc(1, n);
	return *out != NULL ? CGN_OK : CGN_FAIL(r->err, NO_MEMORY, "no memory for a message");
}

static void piece_append(void *arg, struct cgn_str piece)
{
	char **end = arg;
	memcpy(*end, piece.p, piece.n);
	*end += piece.n;
}

/* protobuf-c's strings are C strings, so a NUL inside would change the meaning. */
static CGN_RC string_read(struct reader *r, const ProtobufCFieldDescriptor *f, struct json_val v, char **at)
{
	void *z = NULL;
	if (v.type != JSON_STRING)
		return field_refuse(r, f, "a string");
	/* The length includes the quotes, which leaves room for the NUL. */
	CGN_TRY(memory_take(r, v.raw.n, &z));
	char *end = z;
	json_str_pieces(v, piece_append, &end);
	*at = z;
	return strlen(*at) == (size_t)(end - *at) ? CGN_OK
						  : field_refuse(r, f, "a string without NUL characters");
}

static CGN_RC bytes_read(struct reader *r, const ProtobufCFieldDescriptor *f, struct json_val v,
	ProtobufCBinaryData *at)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0}, bytes = {0};
	void *to = NULL;
	if (v.type != JSON_STRING)
		return field_refuse(r, f, "a string in base64");
	json_str_to(v, &text);
	if (!base64_get(&bytes, cgn_buf_view(&text)))
		return field_refuse(r, f, "a string in base64");
	if (bytes.n == 0)
		return CGN_OK;
	CGN_TRY(memory_take(r, bytes.n, &to));
	memcpy(to, bytes.p, bytes.n);
	*at = (ProtobufCBinaryData){bytes.n, to};
	return CGN_OK;
}

/* Digits of a number or inside a string, with a sign where |least| is below 0. */
static bool integer_of(struct json_val v, int64_t least, uint64_t most, uint64_t *out)
{
	struct json_val n = {JSON_NUMBER, v.raw};
	uint64_t magnitude = 0;
	if (v.type == JSON_STRING)
		n.raw = (struct cgn_str){v.raw.p + 1, v.raw.n - 2};
	bool negative = n.raw.n > 1 && n.raw.p[0] == '-';
	if (negative)
		n.raw = (struct cgn_str){n.raw.p + 1, n.raw.n - 1};
	if (v.type == JSON_STRING ? !cgn_str_u64(n.raw, &magnitude)
				  : v.type != JSON_NUMBER || !json_u64(n, &magnitude))
		return false;
	if (magnitude > (negative ? (uint64_t)0 - (uint64_t)least : most))
		return false;
	*out = negative ? (uint64_t)0 - magnitude : magnitude;
	return true;
}

static CGN_RC integer_read(struct reader *r, const ProtobufCFieldDescriptor *f, struct json_val v, void *at)
{
	bool is_signed = pb_json_type(f)->is_signed, wide = pb_json_type(f)->size == sizeof(uint64_t);
	int64_t least = !is_signed ? 0 : wide ? INT64_MIN : INT32_MIN;
	uint64_t most = is_signed ? (wide ? INT64_MAX : INT32_MAX) : wide ? UINT64_MAX : UINT32_MAX, n = 0;
	if (!integer_of(v, least, most, &n)) {
		char expected[80];
		(void)snprintf(expected, sizeof expected, "a whole number from %lld to %llu",
			(long long)least, (unsigned long long)most);
		return field_refuse(r, f, expected);
	}
	if (wide)
		memcpy(at, &n, sizeof n);
	else
		memcpy(at, &(uint32_t){(uint32_t)n}, sizeof(uint32_t));
	return CGN_OK;
}

static CGN_RC real_read(struct reader *r, const ProtobufCFieldDescriptor *f, struct json_val v, void *at)
{
	double n = 0;
	bool narrow = f->type == PROTOBUF_C_TYPE_FLOAT;
	if (!json_f64(v, &n) || (narrow && fabs(n) > (double)FLT_MAX))
		return field_refuse(r, f,
			narrow ? "a number that a float holds" : "a number that a double holds");
	if (narrow)
		memcpy(at, &(float){(float)n}, sizeof(float));
	else
		memcpy(at, &n, sizeof n);
	return CGN_OK;
}

/* Numbers without a name belong to a later version and are kept. */
static CGN_RC enum_read(struct reader *r, const ProtobufCFieldDescriptor *f, struct json_val v, void *at)
{
	uint64_t n = 0;
	char name[PB_JSON_NAME];
	const ProtobufCEnumValue *e = NULL;
	if (v.type == JSON_STRING) {
		if (cgn_str_copyz(name, sizeof name, (struct cgn_str){v.raw.p + 1, v.raw.n - 2}))
			e = protobuf_c_enum_descriptor_get_value_by_name(f->descriptor, name);
		if (e == NULL) /* A later version's name counts as an unknown member does. */
			return CGN_OK;
	}
	if (e == NULL && (v.type != JSON_NUMBER || !json_u64(v, &n) || n > INT32_MAX))
		return field_refuse(r, f, "a name of its enumeration, or a number from 0");
	memcpy(at, &(int){e != NULL ? e->value : (int)n}, sizeof(int));
	return CGN_OK;
}

static CGN_RC bool_read(struct reader *r, const ProtobufCFieldDescriptor *f, struct json_val v, void *at)
{
	if (v.type != JSON_BOOL)
		return field_refuse(r, f, "true or false");
	memcpy(at, &(protobuf_c_boolean){json_bool(v, false)}, sizeof(protobuf_c_boolean));
	return CGN_OK;
}

static CGN_RC value_read(struct reader *r, const ProtobufCFieldDescriptor *f, struct json_val v, void *at)
{
	switch (pb_json_type(f)->kind) {
	case PB_JSON_INTEGER:
		return integer_read(r, f, v, at);
	case PB_JSON_REAL:
		return real_read(r, f, v, at);
	case PB_JSON_BOOL:
		return bool_read(r, f, v, at);
	case PB_JSON_ENUM:
		return enum_read(r, f, v, at);
	case PB_JSON_STRING:
		return string_read(r, f, v, at);
	case PB_JSON_BYTES:
		return bytes_read(r, f, v, at);
	case PB_JSON_MESSAGE:
		break;
	}
	return v.type == JSON_OBJECT ? message_read(r, v, f->descriptor, at)
				     : field_refuse(r, f, "an object");
}

static CGN_RC array_read(struct reader *r, const ProtobufCFieldDescriptor *f, struct json_val v,
	ProtobufCMessage *m)
{
	struct json_val elem;
	size_t n = 0, size = pb_json_type(f)->size;
	void *first = NULL;
	if (v.type != JSON_ARRAY)
		return field_refuse(r, f, "an array");
	for (struct json_iter count = json_iter_of(v); json_next_elem(&count, &elem);)
		n++;
	if (n == 0)
		return CGN_OK;
	CGN_TRY(memory_take(r, n * size, &first));
	memcpy((char *)m + f->offset, &first, sizeof first);
	memcpy((char *)m + f->quantifier_offset, &n, sizeof n);
	struct json_iter it = json_iter_of(v);
	for (char *at = first; json_next_elem(&it, &elem); at += size)
		CGN_TRY(value_read(r, f, elem, at));
	return CGN_OK;
}

static CGN_RC field_read(struct reader *r, const ProtobufCFieldDescriptor *f, struct json_val v,
	ProtobufCMessage *m)
{
	char *quantifier = (char *)m + f->quantifier_offset;
	uint32_t set;
	if (f->label == PROTOBUF_C_LABEL_REPEATED)
		return array_read(r, f, v, m);
	if ((f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0) {
		memcpy(&set, quantifier, sizeof set);
		if (set != 0)
			return field_refuse(r, f, "the only member of its oneof");
		memcpy(quantifier, &f->id, sizeof f->id);
		memset((char *)m + f->offset, 0, pb_json_type(f)->size);
	}
	return value_read(r, f, v, (char *)m + f->offset);
}

static CGN_RC fields_read(struct reader *r, struct json_val v, ProtobufCMessage *m)
{
	char names[PB_JSON_FIELDS][PB_JSON_NAME];
	const char *keys[2 * PB_JSON_FIELDS] = {NULL};
	struct json_val found[2 * PB_JSON_FIELDS];
	unsigned n = m->descriptor->n_fields;
	CGN_MUST(n <= PB_JSON_FIELDS);
	for (unsigned i = 0; i < n; i++) {
		pb_json_name(&m->descriptor->fields[i], names[i]);
		keys[2 * i] = names[i];
		keys[2 * i + 1] = m->descriptor->fields[i].name;
	}
	if (!json_pick(v, keys, (size_t)2 * n, found))
		return CGN_FAIL(r->err, INVALID, "a member stands there twice");
	for (unsigned i = 0; i < n; i++) {
		if (found[2 * i].raw.p != NULL && found[2 * i + 1].raw.p != NULL &&
			found[2 * i].raw.p != found[2 * i + 1].raw.p)
			return CGN_FAIL(r->err, INVALID, "\"%s\" stands there twice", names[i]);
		struct json_val one = found[2 * i].raw.p != NULL ? found[2 * i] : found[2 * i + 1];
		if (one.type != JSON_NULL)
			CGN_TRY(field_read(r, &m->descriptor->fields[i], one, m));
	}
	return CGN_OK;
}

static CGN_RC message_read(struct reader *r, struct json_val v, const ProtobufCMessageDescriptor *type,
	ProtobufCMessage **out)
{
	void *m = NULL;
	CGN_TRY(memory_take(r, type->sizeof_message, &m));
	protobuf_c_message_init(type, m);
	*out = m;
	return fields_read(r, v, m);
}

CGN_RC pb_json_read(const ProtobufCMessageDescriptor *type, struct cgn_str json, void *out_message,
	struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) ProtobufCMessage *m = NULL;
	struct json_val root;
	struct reader r = {.budget = json.n > (SIZE_MAX >> 5) ? SIZE_MAX : json.n * 16 + (size_t)64 * 1024,
		.err = err};
	CGN_TRY(json_parse(json, &root, NULL, err));
	if (root.type != JSON_OBJECT)
		return CGN_FAIL(err, INVALID, "%s: the JSON is not an object", type->short_name);
	CGN_TRY(cgn_err_of(message_read(&r, root, type, &m), type->short_name, err));
	memcpy(out_message, &m, sizeof m);
	m = NULL;
	return CGN_OK;
}
