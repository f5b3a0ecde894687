/* SPDX-License-Identifier: Apache-2.0 */
/* pb_json, writing. */
#include "base/pb/pb_json.h"

#include <math.h>

#include "base/codec/codec.h"
#include "base/pb/pb_json_priv.h"

static const struct pb_json_type types[] = {
	[PROTOBUF_C_TYPE_INT32] = {PB_JSON_INTEGER, true, sizeof(int32_t)},
	[PROTOBUF_C_TYPE_SINT32] = {PB_JSON_INTEGER, true, sizeof(int32_t)},
	[PROTOBUF_C_TYPE_SFIXED32] = {PB_JSON_INTEGER, true, sizeof(int32_t)},
	[PROTOBUF_C_TYPE_INT64] = {PB_JSON_INTEGER, true, sizeof(int64_t)},
	[PROTOBUF_C_TYPE_SINT64] = {PB_JSON_INTEGER, true, sizeof(int64_t)},
	[PROTOBUF_C_TYPE_SFIXED64] = {PB_JSON_INTEGER, true, sizeof(int64_t)},
	[PROTOBUF_C_TYPE_UINT32] = {PB_JSON_INTEGER, false, sizeof(uint32_t)},
	[PROTOBUF_C_TYPE_FIXED32] = {PB_JSON_INTEGER, false, sizeof(uint32_t)},
	[PROTOBUF_C_TYPE_UINT64] = {PB_JSON_INTEGER, false, sizeof(uint64_t)},
	[PROTOBUF_C_TYPE_FIXED64] = {PB_JSON_INTEGER, false, sizeof(uint64_t)},
	[PROTOBUF_C_TYPE_FLOAT] = {PB_JSON_REAL, true, sizeof(float)},
	[PROTOBUF_C_TYPE_DOUBLE] = {PB_JSON_REAL, true, sizeof(double)},
	[PROTOBUF_C_TYPE_BOOL] = {PB_JSON_BOOL, false, sizeof(protobuf_c_boolean)},
	[PROTOBUF_C_TYPE_ENUM] = {PB_JSON_ENUM, true, sizeof(int)},
	[PROTOBUF_C_TYPE_STRING] = {PB_JSON_STRING, false, sizeof(char *)},
	[PROTOBUF_C_TYPE_BYTES] = {PB_JSON_BYTES, false, sizeof(ProtobufCBinaryData)},
	[PROTOBUF_C_TYPE_MESSAGE] = {PB_JSON_MESSAGE, false, sizeof(ProtobufCMessage *)},
};

const struct pb_json_type *pb_json_type(const ProtobufCFieldDescriptor *f)
{
	CGN_MUST((size_t)f->type < CGN_COUNT(types));
	return &types[f->type];
}

void pb_json_name(const ProtobufCFieldDescriptor *f, char out[PB_JSON_NAME])
{
	size_t n = 0;
	for (const char *p = f->name; *p != '\0'; p++) {
		bool joins = *p == '_' && p[1] != '\0';
		CGN_MUST(n + 1 < PB_JSON_NAME);
		p += joins;
		out[n++] = (char)(joins && *p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p);
	}
	out[n] = '\0';
}

/* How one message is written: |select| lists its fields, or is {NULL, 0} for all of them. */
struct how {
	enum pb_json_style style;
	struct cgn_str select;
};

static void message_put(struct json_out *o, const ProtobufCMessage *m, struct how how);
static void selected_put(struct json_out *o, const ProtobufCMessage *m, struct cgn_str select);

static uint32_t u32_at(const void *at)
{
	uint32_t v;
	memcpy(&v, at, sizeof v);
	return v;
}

static uint64_t u64_at(const void *at)
{
	uint64_t v;
	memcpy(&v, at, sizeof v);
	return v;
}

static void *pointer_at(const void *at)
{
	void *p;
	memcpy(&p, at, sizeof p);
	return p;
}

static void real_put(struct json_out *o, const void *at, size_t size)
{
	float narrow = 0;
	double wide = 0;
	if (size == sizeof wide)
		memcpy(&wide, at, sizeof wide);
	else
		memcpy(&narrow, at, sizeof narrow);
	json_put_f64(o, size == sizeof wide ? wide : (double)narrow);
}

const char *pb_enum_word(const ProtobufCEnumDescriptor *type, int value, char out[PB_ENUM_WORD])
{
	const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(type, value);
	if (v == NULL)
		v = protobuf_c_enum_descriptor_get_value(type, 0);
	const char *p = v != NULL ? strchr(v->name, '_') : NULL;
	size_t n = 0;
	for (; p != NULL && p[1] != '\0' && n + 1 < PB_ENUM_WORD; p++)
		out[n++] = (char)(p[1] >= 'A' && p[1] <= 'Z' ? p[1] - 'A' + 'a' : p[1]);
	out[n] = '\0';
	return out;
}

static void enum_put(struct json_out *o, const ProtobufCEnumDescriptor *type, int value)
{
	const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(type, value);
	if (v != NULL)
		json_put_z(o, v->name);
	else
		json_put_i64(o, value);
}

static void bytes_put(struct json_out *o, const void *at)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	ProtobufCBinaryData data;
	memcpy(&data, at, sizeof data);
	base64_put(&text, (struct cgn_str){(const char *)data.data, data.len});
	if (text.bad)
		o->b->bad = true;
	json_put_str(o, cgn_buf_view(&text));
}

/* The standard mapping writes 64-bit integers as strings, because JavaScript would round them. */
static void integer_put(struct json_out *o, const void *at, const struct pb_json_type *t,
	enum pb_json_style style)
{
	char digits[24];
	bool is_wide = t->size == sizeof(uint64_t);
	uint64_t v = is_wide   ? u64_at(at)
		: t->is_signed ? (uint64_t)(int64_t)(int32_t)u32_at(at)
			       : u32_at(at);
	if (t->is_signed)
		(void)snprintf(digits, sizeof digits, "%lld", (long long)v);
	else
		(void)snprintf(digits, sizeof digits, "%llu", (unsigned long long)v);
	if (is_wide && style == PB_JSON_PROTO3)
		json_put_z(o, digits);
	else
		json_put_raw(o, cgn_str_of(digits));
}

static void value_put(struct json_out *o, const ProtobufCFieldDescriptor *f, const void *at, struct how how)
{
	const struct pb_json_type *t = pb_json_type(f);
	const char *z;
	switch (t->kind) {
	case PB_JSON_INTEGER:
		integer_put(o, at, t, how.style);
		return;
	case PB_JSON_REAL:
		real_put(o, at, t->size);
		return;
	case PB_JSON_BOOL:
		json_put_bool(o, u32_at(at) != 0);
		return;
	case PB_JSON_ENUM:
		enum_put(o, f->descriptor, (int)u32_at(at));
		return;
	case PB_JSON_STRING:
		z = pointer_at(at);
		json_put_z(o, z != NULL ? z : "");
		return;
	case PB_JSON_BYTES:
		bytes_put(o, at);
		return;
	case PB_JSON_MESSAGE:
		message_put(o, pointer_at(at), how);
		return;
	}
}

static void array_put(struct json_out *o, const ProtobufCFieldDescriptor *f, const char *first, size_t n,
	struct how how)
{
	json_open(o, '[');
	for (size_t i = 0; i < n; i++)
		value_put(o, f, first + i * pb_json_type(f)->size, how);
	json_close(o, ']');
}

static bool is_default(const ProtobufCFieldDescriptor *f, const void *at)
{
	static const uint64_t zero = 0;
	const struct pb_json_type *t = pb_json_type(f);
	const char *z = t->kind == PB_JSON_STRING ? pointer_at(at) : NULL;
	ProtobufCBinaryData data;
	if (t->kind == PB_JSON_STRING)
		return z == NULL || z[0] == '\0';
	if (t->kind != PB_JSON_BYTES)
		return memcmp(at, &zero, t->size) == 0;
	memcpy(&data, at, sizeof data);
	return data.len == 0;
}

static bool is_written(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f, enum pb_json_style style)
{
	const char *at = (const char *)m + f->offset, *quantifier = (const char *)m + f->quantifier_offset;
	if (f->label == PROTOBUF_C_LABEL_REPEATED)
		return style == PB_JSON_PLAIN || u64_at(quantifier) > 0;
	if ((f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0)
		return u32_at(quantifier) == f->id;
	return (style == PB_JSON_PLAIN && pb_json_type(f)->kind != PB_JSON_MESSAGE) || !is_default(f, at);
}

static bool is_retired(const ProtobufCFieldDescriptor *f, enum pb_json_style style)
{
	return style == PB_JSON_PLAIN && (f->flags & PROTOBUF_C_FIELD_FLAG_DEPRECATED) != 0;
}

/* |f| is a double. */
static bool is_nan(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
	double v;
	CGN_MUST(f->type == PROTOBUF_C_TYPE_DOUBLE);
	memcpy(&v, (const char *)m + f->offset, sizeof v);
	return isnan(v);
}

static void field_put(struct json_out *o, const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f,
	struct how how)
{
	const char *at = (const char *)m + f->offset;
	if (f->label == PROTOBUF_C_LABEL_REPEATED)
		array_put(o, f, pointer_at(at), u64_at((const char *)m + f->quantifier_offset), how);
	else
		value_put(o, f, at, how);
}

static void fields_put(struct json_out *o, const ProtobufCMessage *m, struct how how)
{
	for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
		char name[PB_JSON_NAME];
		if (!is_written(m, f, how.style) || is_retired(f, how.style))
			continue;
		pb_json_name(f, name);
		json_key(o, how.style == PB_JSON_PROTO3 ? name : f->name);
		field_put(o, m, f, how);
	}
}

/* A selection lists such terms: "key=field{inner}", with a mark behind the field. */
struct selected {
	char key[PB_JSON_NAME], field[PB_JSON_NAME];
	char mark; /* '\0': none. */
	struct cgn_str inner;
};

static void selection_take(struct cgn_str *rest, struct selected *out)
{
	size_t n = 0, depth = 0;
	while (n < rest->n && (depth > 0 || rest->p[n] != ' ')) {
		depth += rest->p[n] == '{';
		depth -= rest->p[n] == '}';
		n++;
	}
	struct cgn_str name = {rest->p, n}, braces = name;
	*rest = (struct cgn_str){rest->p + n + (n < rest->n), rest->n - n - (n < rest->n)};
	name = cgn_str_split(&braces, '{');
	out->inner = braces.p != NULL ? (struct cgn_str){braces.p, braces.n - 1} : (struct cgn_str){NULL, 0};
	out->mark = name.n > 0 && strchr("*?!~%@", name.p[name.n - 1]) != NULL ? name.p[name.n - 1] : '\0';
	name.n -= out->mark != '\0';
	struct cgn_str behind = name, before = cgn_str_split(&behind, '=');
	CGN_MUST(cgn_str_copyz(out->key, PB_JSON_NAME, before));
	CGN_MUST(cgn_str_copyz(out->field, PB_JSON_NAME, behind.p != NULL ? behind : before));
}

static void members_put(struct json_out *o, const ProtobufCMessage *m, struct how how)
{
	if (how.select.p != NULL)
		selected_put(o, m, how.select);
	else
		fields_put(o, m, how);
}

/* Write the value of the field that |select| names after a '='. */
static void bare_put(struct json_out *o, const ProtobufCMessage *m, struct cgn_str select)
{
	char name[PB_JSON_NAME];
	CGN_MUST(cgn_str_copyz(name, sizeof name, (struct cgn_str){select.p + 1, select.n - 1}));
	const ProtobufCFieldDescriptor *f =
		protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name);
	CGN_MUST(f != NULL);
	field_put(o, m, f, (struct how){.style = PB_JSON_PLAIN});
}

/* protobuf-c orders fields by their numbers. */
static void keyed_put(struct json_out *o, const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f,
	struct how how)
{
	ProtobufCMessage *const *list = pointer_at((const char *)m + f->offset);
	size_t n = u64_at((const char *)m + f->quantifier_offset);
	json_open(o, '{');
	bool bare = how.select.n > 0 && how.select.p[0] == '=';
	for (size_t i = 0; i < n; i++) {
		json_key(o, pointer_at((const char *)list[i] + list[i]->descriptor->fields[0].offset));
		if (bare)
			bare_put(o, list[i], how.select);
		else
			message_put(o, list[i], how);
	}
	json_close(o, '}');
}

static void selected_put(struct json_out *o, const ProtobufCMessage *m, struct cgn_str select)
{
	while (select.n > 0) {
		struct selected s;
		selection_take(&select, &s);
		const struct how how = {.style = PB_JSON_PLAIN, .select = s.inner};
		const ProtobufCFieldDescriptor *f =
			protobuf_c_message_descriptor_get_field_by_name(m->descriptor, s.field);
		CGN_MUST(f != NULL);
		bool set = is_written(m, f, s.mark == '?' || s.mark == '!' ? PB_JSON_PROTO3 : PB_JSON_PLAIN);
		if ((!set && s.mark != '!') || (s.mark == '%' && is_nan(m, f)))
			continue;
		if (s.mark == '*') {
			members_put(o, pointer_at((const char *)m + f->offset), how);
			continue;
		}
		char word[PB_ENUM_WORD];
		json_key(o, s.key);
		if (s.mark == '~')
			json_put_z(o,
				pb_enum_word(f->descriptor, (int)u32_at((const char *)m + f->offset), word));
		else if (s.mark == '@')
			keyed_put(o, m, f, how);
		else if (set)
			field_put(o, m, f, how);
		else
			json_put_null(o);
	}
}

static void message_put(struct json_out *o, const ProtobufCMessage *m, struct how how)
{
	json_open(o, '{');
	members_put(o, m, how);
	json_close(o, '}');
}

void pb_json_put(struct json_out *o, const void *message, enum pb_json_style style)
{
	message_put(o, message, (struct how){.style = style});
}

void pb_json_members(struct json_out *o, const void *message, const char *select)
{
	selected_put(o, message, cgn_str_of(select));
}

void pb_json_select(struct json_out *o, const void *message, const char *select)
{
	message_put(o, message, (struct how){.style = PB_JSON_PLAIN, .select = cgn_str_of(select)});
}
