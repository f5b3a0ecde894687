/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz json: an accepted text can be walked to its end, and is the same after writing and reading again. */
#include "base/json/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void json_rewrite(struct json_out *o, struct json_val v);

static void rewrite_object(struct json_out *o, struct json_val v)
{
	struct json_iter it = json_iter_of(v);
	struct cgn_str raw;
	json_open(o, '{');
	for (struct json_val member; json_next_member(&it, &raw, &member);) {
		struct cgn_buf key = {0};
		json_str_to((struct json_val){JSON_STRING, {raw.p - 1, raw.n + 2}}, &key);
		json_put_str(o, cgn_buf_view(&key)); /* The key may have a NUL in it. */
		cgn_buf_char(o->b, ':');
		o->comma = false;
		json_rewrite(o, member);
		cgn_buf_fini(&key);
	}
	json_close(o, '}');
}

static void rewrite_array(struct json_out *o, struct json_val v)
{
	struct json_iter it = json_iter_of(v);
	json_open(o, '[');
	for (struct json_val elem; json_next_elem(&it, &elem);)
		json_rewrite(o, elem);
	json_close(o, ']');
}

static void rewrite_number(struct json_out *o, struct json_val v)
{
	uint64_t u;
	double f;
	if (json_u64(v, &u))
		CGN_MUST(!json_f64(v, &f) || f >= 0);
	json_put_raw(o, v.raw);
}

static void rewrite_string(struct json_out *o, struct json_val v)
{
	struct cgn_arena a;
	cgn_arena_init(&a, 1 << 24);
	struct cgn_str text = json_str(v, &a);
	CGN_MUST(text.p != NULL && cgn_utf8_valid(text.p, text.n));
	json_put_str(o, text);
	cgn_arena_fini(&a);
}

static void json_rewrite(struct json_out *o, struct json_val v)
{
	if (v.type == JSON_OBJECT)
		rewrite_object(o, v);
	else if (v.type == JSON_ARRAY)
		rewrite_array(o, v);
	else if (v.type == JSON_STRING)
		rewrite_string(o, v);
	else if (v.type == JSON_NUMBER)
		rewrite_number(o, v);
	else
		json_put_raw(o, v.raw);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct json_val v, again;
	struct cgn_err err;
	size_t offset = 0;
	if (!cgn_ok(json_parse((struct cgn_str){(const char *)data, n}, &v, &offset, &err))) {
		CGN_MUST(offset <= n);
		return 0;
	}
	struct cgn_buf once = {0}, twice = {0};
	struct json_out first = json_out_to(&once), second = json_out_to(&twice);
	json_rewrite(&first, v);
	CGN_MUST(cgn_ok(json_parse(cgn_buf_view(&once), &again, NULL, &err)));
	json_rewrite(&second, again);
	CGN_MUST(cgn_str_eq(cgn_buf_view(&once), cgn_buf_view(&twice)));
	cgn_buf_fini(&once);
	cgn_buf_fini(&twice);
	return 0;
}
