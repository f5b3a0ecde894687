/* SPDX-License-Identifier: Apache-2.0 */
/* All messages, enumerations and methods of cognitora.v1 against those of the versions that are kept (tests/golden).
 *
 * A message with each of its fields set is made by its descriptor: the value says the field's number. What this build
 * makes must have all that a kept version's message has, with the same values: fields are only added. A message with
 * fields of a later version must be read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "golden_world.h"

#include "base/codec/codec.h"
#include "base/pb/pb.h"
#include "cognitora/v1/agent.pb-c.h"
#include "cognitora/v1/control.pb-c.h"
#include "cognitora/v1/kv.pb-c.h"
#include "cognitora/v1/metrics.pb-c.h"
#include "cognitora/v1/models.pb-c.h"
#include "cognitora/v1/node.pb-c.h"
#include "cognitora/v1/router.pb-c.h"

#define FILE_NAME   "cognitora.v1.txt"
#define FUTURE      2000 /* Number of the first field that no version has. */
#define UNSEEN_ENUM 77
#define MOST_TYPES  256

static const ProtobufCServiceDescriptor *const services[] = {&cognitora__v1__agent__descriptor,
	&cognitora__v1__control__descriptor, &cognitora__v1__join__descriptor, &cognitora__v1__kv__descriptor,
	&cognitora__v1__metrics__descriptor, &cognitora__v1__router__descriptor};

/* ---- types: all that the methods use ---- */

struct types {
	const ProtobufCMessageDescriptor *messages[MOST_TYPES];
	const ProtobufCEnumDescriptor *enums[MOST_TYPES];
	size_t n_messages, n_enums;
};

static void enum_add(struct types *t, const ProtobufCEnumDescriptor *e)
{
	for (size_t i = 0; i < t->n_enums; i++)
		if (t->enums[i] == e)
			return;
	assert_true(t->n_enums < MOST_TYPES);
	t->enums[t->n_enums++] = e;
}

static void message_add(struct types *t, const ProtobufCMessageDescriptor *m)
{
	for (size_t i = 0; i < t->n_messages; i++)
		if (t->messages[i] == m)
			return;
	assert_true(t->n_messages < MOST_TYPES);
	t->messages[t->n_messages++] = m;
	for (unsigned i = 0; i < m->n_fields; i++) {
		if (m->fields[i].type == PROTOBUF_C_TYPE_MESSAGE)
			message_add(t, m->fields[i].descriptor);
		else if (m->fields[i].type == PROTOBUF_C_TYPE_ENUM)
			enum_add(t, m->fields[i].descriptor);
	}
}

static struct types types_all(void)
{
	struct types t = {.n_messages = 0};
	for (size_t s = 0; s < CGN_COUNT(services); s++)
		for (unsigned i = 0; i < services[s]->n_methods; i++) {
			message_add(&t, services[s]->methods[i].input);
			message_add(&t, services[s]->methods[i].output);
		}
	/* Stored as JSON, and in no method. */
	message_add(&t, &cognitora__v1__wanted_models__descriptor);
	return t;
}

static const ProtobufCMessageDescriptor *message_find(const struct types *t, struct cgn_str name)
{
	for (size_t i = 0; i < t->n_messages; i++)
		if (cgn_str_is(name, t->messages[i]->name))
			return t->messages[i];
	return NULL;
}

static const ProtobufCFieldDescriptor *field_find(const ProtobufCMessageDescriptor *m, uint64_t id)
{
	for (unsigned i = 0; i < m->n_fields; i++)
		if (m->fields[i].id == id)
			return &m->fields[i];
	return NULL;
}

/* ---- a message with each field set ---- */

enum wire { VARINT, FIXED64, BYTES, FIXED32 = 5 };

static void varint_put(struct cgn_buf *out, uint64_t v)
{
	for (; v >= 0x80; v >>= 7)
		cgn_buf_char(out, (char)(uint8_t)(v | 0x80));
	cgn_buf_char(out, (char)(uint8_t)v);
}

static void tag_put(struct cgn_buf *out, uint64_t id, enum wire type)
{
	varint_put(out, id << 3 | (uint64_t)type);
}

static void bytes_put(struct cgn_buf *out, uint64_t id, struct cgn_str bytes)
{
	tag_put(out, id, BYTES);
	varint_put(out, bytes.n);
	cgn_buf_str(out, bytes);
}

static void text_put(struct cgn_buf *out, uint64_t id)
{
	char text[24];
	(void)snprintf(text, sizeof text, "field %llu", (unsigned long long)id);
	bytes_put(out, id, cgn_str_of(text));
}

static void future_put(struct cgn_buf *out)
{
	tag_put(out, FUTURE, VARINT);
	varint_put(out, UINT64_MAX);
	bytes_put(out, FUTURE + 1, CGN_STR("of a later version"));
	tag_put(out, FUTURE + 2, FIXED64);
	cgn_buf_add(out, "\1\2\3\4\5\6\7\10", 8);
	tag_put(out, FUTURE + 3, FIXED32);
	cgn_buf_add(out, "\1\2\3\4", 4);
}

static void message_put(const ProtobufCMessageDescriptor *m, bool future, struct cgn_buf *out);

static void field_put(const ProtobufCFieldDescriptor *f, bool future, struct cgn_buf *out)
{
	struct cgn_buf inner = {.n = 0};
	const double d = (double)f->id + 0.5;
	const float s = (float)f->id + 0.5f;
	const uint64_t w = UINT64_C(0x0102030405060700) + f->id;
	switch (f->type) {
	case PROTOBUF_C_TYPE_STRING:
	case PROTOBUF_C_TYPE_BYTES:
		text_put(out, f->id);
		break;
	case PROTOBUF_C_TYPE_MESSAGE:
		message_put(f->descriptor, future, &inner);
		bytes_put(out, f->id, cgn_buf_view(&inner));
		break;
	case PROTOBUF_C_TYPE_DOUBLE:
		tag_put(out, f->id, FIXED64);
		cgn_buf_add(out, &d, sizeof d);
		break;
	case PROTOBUF_C_TYPE_FIXED64:
	case PROTOBUF_C_TYPE_SFIXED64:
		tag_put(out, f->id, FIXED64);
		cgn_buf_add(out, &w, sizeof w);
		break;
	case PROTOBUF_C_TYPE_FLOAT:
		tag_put(out, f->id, FIXED32);
		cgn_buf_add(out, &s, sizeof s);
		break;
	case PROTOBUF_C_TYPE_FIXED32:
	case PROTOBUF_C_TYPE_SFIXED32:
		tag_put(out, f->id, FIXED32);
		cgn_buf_add(out, &w, 4);
		break;
	case PROTOBUF_C_TYPE_BOOL:
	case PROTOBUF_C_TYPE_ENUM:
		tag_put(out, f->id, VARINT);
		varint_put(out, f->type == PROTOBUF_C_TYPE_ENUM && future ? UNSEEN_ENUM : 1);
		break;
	case PROTOBUF_C_TYPE_INT32:
	case PROTOBUF_C_TYPE_SINT32:
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_SINT64:
	case PROTOBUF_C_TYPE_UINT32:
	case PROTOBUF_C_TYPE_UINT64:
		tag_put(out, f->id, VARINT);
		varint_put(out, 1000 + f->id);
		break;
	}
	cgn_buf_fini(&inner);
}

/* |future|: with fields that no version has, in each message, and with values that no enumeration has. */
static void message_put(const ProtobufCMessageDescriptor *m, bool future, struct cgn_buf *out)
{
	for (unsigned i = 0; i < m->n_fields; i++)
		for (int n = m->fields[i].label == PROTOBUF_C_LABEL_REPEATED ? 2 : 1; n > 0; n--)
			field_put(&m->fields[i], future, out);
	if (future)
		future_put(out);
}

/* Read |bytes| as a message of type |m| and write it, as the programs do. */
static void message_through(const ProtobufCMessageDescriptor *m, struct cgn_str bytes, struct cgn_buf *out)
{
	CGN_ON_EXIT(pb_free) ProtobufCMessage *message = NULL;
	struct cgn_err err = {.msg = ""};
	if (!cgn_ok(pb_unpack(m, bytes, &message, &err)))
		fail_msg("%s: %s", m->name, err.msg);
	pb_pack(message, out);
	assert_false(out->bad);
}

static void message_made(const ProtobufCMessageDescriptor *m, struct cgn_buf *out)
{
	struct cgn_buf plain = {.n = 0};
	message_put(m, false, &plain);
	message_through(m, cgn_buf_view(&plain), out);
	cgn_buf_fini(&plain);
}

/* ---- comparison: this build writes all that a kept version wrote ---- */

struct field {
	uint64_t id;
	enum wire type;
	struct cgn_str value; /* Without its length. */
};

static uint64_t varint_take(struct cgn_str *rest)
{
	uint64_t v = 0;
	for (unsigned shift = 0; rest->n > 0 && shift < 64; shift += 7) {
		uint8_t b = (uint8_t)*rest->p++;
		rest->n--;
		v |= (uint64_t)(b & 0x7f) << shift;
		if (b < 0x80)
			break;
	}
	return v;
}

static bool field_next(struct cgn_str *rest, struct field *out)
{
	if (rest->n == 0)
		return false;
	uint64_t tag = varint_take(rest);
	*out = (struct field){.id = tag >> 3, .type = (enum wire)(tag & 7)};
	const char *begin = rest->p;
	size_t n = out->type == FIXED64 ? 8 : out->type == FIXED32 ? 4 : 0;
	if (out->type == BYTES) {
		n = (size_t)varint_take(rest);
		begin = rest->p;
	} else if (out->type == VARINT) {
		(void)varint_take(rest);
		n = (size_t)(rest->p - begin);
		*rest = (struct cgn_str){begin, rest->n + n};
	}
	assert_true(n <= rest->n);
	out->value = (struct cgn_str){begin, n};
	*rest = (struct cgn_str){begin + n, rest->n - n};
	return true;
}

/* Find the |nth| field of that number. */
static bool field_nth(struct cgn_str rest, uint64_t id, unsigned nth, struct field *out)
{
	while (field_next(&rest, out))
		if (out->id == id && nth-- == 0)
			return true;
	return false;
}

static void message_includes(const ProtobufCMessageDescriptor *m, struct cgn_str kept, struct cgn_str now)
{
	struct field a, b;
	uint64_t last = 0;
	unsigned nth = 0;
	for (struct cgn_str rest = kept; field_next(&rest, &a); last = a.id) {
		nth = a.id == last ? nth + 1 : 0;
		const ProtobufCFieldDescriptor *f = field_find(m, a.id);
		if (f == NULL)
			fail_msg("%s: field %llu is gone: say \"reserved\" and keep reading it for a version",
				m->name, (unsigned long long)a.id);
		if (!field_nth(now, a.id, nth, &b) || a.type != b.type)
			fail_msg("%s.%s: field %llu has another type", m->name, f->name,
				(unsigned long long)a.id);
		if (f->type == PROTOBUF_C_TYPE_MESSAGE)
			message_includes(f->descriptor, a.value, b.value);
		else if (f->type == PROTOBUF_C_TYPE_ENUM && now.n > 0 && UNSEEN_ENUM == b.value.p[0])
			continue;
		else if (!cgn_str_eq(a.value, b.value))
			fail_msg("%s.%s: field %llu is written in another way", m->name, f->name,
				(unsigned long long)a.id);
	}
}

static void message_check(const struct types *t, struct cgn_str name, struct cgn_str hex)
{
	struct cgn_buf kept = {.n = 0}, now = {.n = 0}, future = {.n = 0}, read = {.n = 0};
	const ProtobufCMessageDescriptor *m = message_find(t, name);
	if (m == NULL)
		fail_msg("the message %.*s is gone", CGN_STR_ARG(name));
	assert_true(hex_get(&kept, hex));
	message_made(m, &now);
	message_includes(m, cgn_buf_view(&kept), cgn_buf_view(&now));
	/* Read the message of the kept version, and write it again: nothing is lost. */
	message_through(m, cgn_buf_view(&kept), &read);
	message_includes(m, cgn_buf_view(&kept), cgn_buf_view(&read));
	/* Read the message of a later version: the known fields are there. */
	message_put(m, true, &future);
	read.n = 0;
	message_through(m, cgn_buf_view(&future), &read);
	message_includes(m, cgn_buf_view(&kept), cgn_buf_view(&read));
	cgn_buf_fini(&kept);
	cgn_buf_fini(&now);
	cgn_buf_fini(&future);
	cgn_buf_fini(&read);
}

/* ---- enumerations and methods ---- */

static void enum_check(const struct types *t, struct cgn_str name, struct cgn_str value,
	struct cgn_str number)
{
	char z[128];
	uint64_t n = 0;
	assert_true(cgn_str_u64(number, &n) && cgn_str_copyz(z, sizeof z, value));
	for (size_t i = 0; i < t->n_enums; i++) {
		if (!cgn_str_is(name, t->enums[i]->name))
			continue;
		const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value_by_name(t->enums[i], z);
		if (v == NULL || (uint64_t)v->value != n)
			fail_msg("%s: %s is no longer %llu", t->enums[i]->name, z, (unsigned long long)n);
		return;
	}
	fail_msg("the enumeration %.*s is gone", CGN_STR_ARG(name));
}

static void method_check(struct cgn_str name, struct cgn_str takes, struct cgn_str gives)
{
	for (size_t s = 0; s < CGN_COUNT(services); s++)
		for (unsigned i = 0; i < services[s]->n_methods; i++) {
			const ProtobufCMethodDescriptor *m = &services[s]->methods[i];
			char full[128];
			(void)snprintf(full, sizeof full, "/%s/%s", services[s]->name, m->name);
			if (!cgn_str_is(name, full))
				continue;
			if (!cgn_str_is(takes, m->input->name) || !cgn_str_is(gives, m->output->name))
				fail_msg("%s takes or gives another message", full);
			return;
		}
	fail_msg("the method %.*s is gone", CGN_STR_ARG(name));
}

/* ---- the capture ---- */

static void capture_write(const struct types *t)
{
	struct cgn_buf out = {.n = 0};
	for (size_t s = 0; s < CGN_COUNT(services); s++)
		for (unsigned i = 0; i < services[s]->n_methods; i++) {
			const ProtobufCMethodDescriptor *m = &services[s]->methods[i];
			cgn_buf_fmt(&out, "method /%s/%s %s %s\n", services[s]->name, m->name, m->input->name,
				m->output->name);
		}
	for (size_t i = 0; i < t->n_enums; i++)
		for (unsigned k = 0; k < t->enums[i]->n_values; k++)
			cgn_buf_fmt(&out, "enum %s %s %d\n", t->enums[i]->name, t->enums[i]->values[k].name,
				t->enums[i]->values[k].value);
	for (size_t i = 0; i < t->n_messages; i++) {
		struct cgn_buf bytes = {.n = 0};
		message_made(t->messages[i], &bytes);
		cgn_buf_fmt(&out, "message %s ", t->messages[i]->name);
		hex_put(&out, cgn_buf_view(&bytes));
		cgn_buf_char(&out, '\n');
		cgn_buf_fini(&bytes);
	}
	golden_write(FILE_NAME, cgn_buf_view(&out));
	cgn_buf_fini(&out);
}

static void line_check(const struct types *t, struct cgn_str line)
{
	struct cgn_str word = cgn_str_split(&line, ' '), name = cgn_str_split(&line, ' ');
	struct cgn_str third = cgn_str_split(&line, ' ');
	if (cgn_str_is(word, "message"))
		message_check(t, name, third);
	else if (cgn_str_is(word, "enum"))
		enum_check(t, name, third, line);
	else if (cgn_str_is(word, "method"))
		method_check(name, third, line);
	else
		fail_msg("no line of a capture: %.*s", CGN_STR_ARG(word));
}

static void version_check(const char *version)
{
	struct cgn_buf text = {.n = 0};
	const struct types t = types_all();
	unsigned n = 0;
	assert_true(golden_read(version, FILE_NAME, &text));
	for (struct cgn_str rest = cgn_buf_view(&text); rest.n > 0; n++)
		line_check(&t, cgn_str_split(&rest, '\n'));
	assert_true(n > 100); /* The file is there, and whole. */
	cgn_buf_fini(&text);
}

static void messages_of_kept_versions_are_understood(void **state)
{
	(void)state;
	char versions[GOLDEN_VERSIONS][GOLDEN_NAME];
	const struct types t = types_all();
	if (golden_out() != NULL)
		capture_write(&t);
	else
		for (size_t i = 0; i < golden_versions(versions); i++)
			version_check(versions[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(messages_of_kept_versions_are_understood)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
