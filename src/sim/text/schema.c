/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/text/schema.h"

#include "base/mix/mix.h"
#include "sim/text/text.h"

struct fill {
	struct json_val root;
	uint64_t *rng;
	struct cgn_arena *a;
	struct json_out *o;
	unsigned depth, values; /* |values|: written so far, as a bound for schemas that multiply. */
};
#define VALUES_MAX 4096
#define ITEMS_MAX  64

static void fill_value(struct fill *f, struct json_val schema);

static void fill_string(struct fill *f, struct json_val schema)
{
	char text[256];
	uint64_t least = json_get_u64(schema, "minLength", 0),
		 most = json_get_u64(schema, "maxLength", sizeof text);
	size_t n = sim_text_phrase(f->rng, 3, text, sizeof text);
	while (n < least && n < sizeof text)
		text[n++] = 'a';
	json_put_str(f->o, (struct cgn_str){text, n < most ? n : (size_t)most});
}

static void fill_number(struct fill *f, struct json_val schema)
{
	double least = json_get_f64(schema, "minimum", 0),
	       most = json_get_f64(schema, "maximum", least + 100);
	*f->rng = mix64(*f->rng + 1);
	int64_t low = (int64_t)(least < -1e15 ? -1e15 : least > 1e15 ? 1e15 : least);
	int64_t high = (int64_t)(most < -1e15 ? -1e15 : most > 1e15 ? 1e15 : most);
	low += (double)low < least; /* The cast rounded toward zero. */
	uint64_t span = high > low ? (uint64_t)(high - low) + 1 : 1;
	json_put_i64(f->o, low + (int64_t)(*f->rng % span));
}

static void fill_array(struct fill *f, struct json_val schema)
{
	struct json_val items = {0};
	bool typed = json_get(schema, "items", &items);
	uint64_t n = json_get_u64(schema, "minItems", 1);
	json_open(f->o, '[');
	for (uint64_t i = 0; typed && i < n && i < ITEMS_MAX; i++)
		fill_value(f, items);
	json_close(f->o, ']');
}

static void fill_object(struct fill *f, struct json_val schema)
{
	struct json_val properties, value;
	struct cgn_str key;
	json_open(f->o, '{');
	if (json_get(schema, "properties", &properties) && properties.type == JSON_OBJECT) {
		struct json_iter it = json_iter_of(properties);
		while (json_next_member(&it, &key, &value)) {
			struct json_val quoted = {JSON_STRING, {key.p - 1, key.n + 2}};
			const char *name = cgn_arena_strz(f->a, json_str(quoted, f->a));
			if (name == NULL)
				break;
			json_key(f->o, name);
			fill_value(f, value);
		}
	}
	json_close(f->o, '}');
}

/* Follow "#/$defs/Name", the only kind of reference that libraries generate. */
static bool follow_ref(struct fill *f, struct json_val *schema)
{
	struct cgn_str ref = json_get_str(*schema, "$ref", f->a);
	if (!cgn_str_starts(ref, "#/"))
		return false;
	struct cgn_str rest = {ref.p + 2, ref.n - 2};
	struct json_val at = f->root;
	while (rest.p != NULL) {
		const char *step = cgn_arena_strz(f->a, cgn_str_split(&rest, '/'));
		if (step == NULL || !json_get(at, step, &at))
			return false;
	}
	*schema = at;
	return true;
}

static bool first_of(struct json_val schema, const char *key, struct json_val *out)
{
	struct json_val list;
	if (!json_get(schema, key, &list) || list.type != JSON_ARRAY)
		return false;
	struct json_iter it = json_iter_of(list);
	return json_next_elem(&it, out);
}

/* Write the value of a schema with const or enum. */
static bool fill_given(struct fill *f, struct json_val schema)
{
	struct json_val given;
	if (!json_get(schema, "const", &given) && !first_of(schema, "enum", &given))
		return false;
	json_put_raw(f->o, given.raw);
	return true;
}

static struct cgn_str type_of(struct fill *f, struct json_val schema)
{
	struct json_val first;
	if (first_of(schema, "type", &first))
		return json_str(first, f->a);
	struct cgn_str type = json_get_str(schema, "type", f->a);
	if (type.n == 0 && json_get(schema, "properties", &first))
		return CGN_STR("object");
	return type;
}

static void fill_typed(struct fill *f, struct json_val schema)
{
	struct cgn_str type = type_of(f, schema);
	if (cgn_str_is(type, "object"))
		fill_object(f, schema);
	else if (cgn_str_is(type, "array"))
		fill_array(f, schema);
	else if (cgn_str_is(type, "integer") || cgn_str_is(type, "number"))
		fill_number(f, schema);
	else if (cgn_str_is(type, "boolean"))
		json_put_bool(f->o, (*f->rng = mix64(*f->rng + 1)) & 1);
	else if (cgn_str_is(type, "null"))
		json_put_null(f->o);
	else
		fill_string(f, schema);
}

static void fill_value(struct fill *f, struct json_val schema)
{
	if (f->depth >= SIM_SCHEMA_DEPTH || ++f->values > VALUES_MAX) {
		json_put_null(f->o);
		return;
	}
	f->depth++;
	struct json_val inner = schema;
	if (schema.type != JSON_OBJECT)
		json_put_z(f->o, "any");
	else if (follow_ref(f, &inner) || first_of(schema, "anyOf", &inner) ||
		first_of(schema, "oneOf", &inner) || first_of(schema, "allOf", &inner))
		fill_value(f, inner);
	else if (!fill_given(f, schema))
		fill_typed(f, schema);
	f->depth--;
}

void sim_schema_fill(struct json_val schema, uint64_t *rng, struct cgn_arena *a, struct json_out *o)
{
	struct fill f = {.root = schema, .rng = rng, .a = a, .o = o};
	fill_value(&f, schema);
}
