/* SPDX-License-Identifier: Apache-2.0 */
/* bench json: the router's cost of reading a chat body, by kind of text. Prints one JSON object; times are
 * the best of many rounds, since disturbances only ever add time. */
#include <stdlib.h>
#include <time.h>

#include "base/json/json.h"
#include "policy/text/prefix/prefix.h"

#define BODY_BYTES 55000
#define ROUNDS     2000

struct kind {
	const char *name, *text;
};

static const struct kind kinds[] = {
	{"prose",
		"The quick brown fox jumps over the lazy dog while the band plays on and nobody looks up. "},
	{"code", "\tif (x->next == NULL)\n\t\treturn fail(\"no \\\"next\\\"\");\n"},
	{"chinese",
		"\xe6\x95\x8f\xe6\x8d\xb7\xe7\x9a\x84\xe6\xa3\x95\xe8\x89\xb2\xe7\x8b\x90\xe7\x8b\xb8\xe8\xb7\xb3\xe8\xbf\x87\xe6\x87\x92\xe7\x8b\x97\xe3\x80\x82"},
};

static uint64_t now_ns(void)
{
	struct timespec t;
	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * CGN_SEC + (uint64_t)t.tv_nsec;
}

static void put_message(struct json_out *o, const char *role, const char *text, size_t bytes)
{
	struct cgn_buf content = {0};
	while (content.n < bytes)
		cgn_buf_putz(&content, text);
	json_open(o, '{');
	json_key(o, "role");
	json_put_z(o, role);
	json_key(o, "content");
	json_put_str(o, cgn_buf_view(&content));
	json_close(o, '}');
	cgn_buf_fini(&content);
}

static void make_body(struct cgn_buf *b, const char *text)
{
	struct json_out o = json_out_to(b);
	json_open(&o, '{');
	json_key(&o, "model");
	json_put_z(&o, "m");
	json_key(&o, "messages");
	json_open(&o, '[');
	put_message(&o, "system", text, 2000);
	while (b->n < BODY_BYTES - 4000)
		put_message(&o, "user", text, 4000);
	json_close(&o, ']');
	json_key(&o, "stream");
	json_put_bool(&o, true);
	json_close(&o, '}');
}

static uint64_t best_parse(struct cgn_str text, struct json_val *body)
{
	uint64_t best = UINT64_MAX;
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t from = now_ns();
		if (!cgn_ok(json_parse(text, body, NULL, NULL)))
			abort();
		uint64_t took = now_ns() - from;
		best = took < best ? took : best;
	}
	return best;
}

static uint64_t best_walk(struct json_val body)
{
	static const char *const keys[] = {"model", "messages", "stream", "tools", "priority"};
	struct json_val v[CGN_COUNT(keys)];
	uint64_t best = UINT64_MAX;
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t from = now_ns();
		json_pick(body, keys, CGN_COUNT(keys), v);
		uint64_t took = now_ns() - from;
		best = took < best ? took : best;
	}
	return best;
}

static uint64_t best_prefix(struct json_val body, size_t *blocks)
{
	const struct prefix_params params = {.model = CGN_STR("m"), .block_bytes = 256, .max_blocks = 4096};
	uint64_t best = UINT64_MAX;
	for (int i = 0; i < ROUNDS; i++) {
		struct cgn_arena a;
		cgn_arena_init(&a, 1 << 20);
		uint64_t from = now_ns();
		*blocks = prefix_chain_make(&params, body, &a).n;
		uint64_t took = now_ns() - from;
		best = took < best ? took : best;
		cgn_arena_fini(&a);
	}
	return best;
}

static void report_kind(struct json_out *o, const struct kind *kind)
{
	struct cgn_buf b = {0};
	struct json_val body;
	size_t blocks = 0;
	make_body(&b, kind->text);
	uint64_t parse = best_parse(cgn_buf_view(&b), &body), walk = best_walk(body),
		 prefix = best_prefix(body, &blocks);
	json_key(o, kind->name);
	json_open(o, '{');
	json_key(o, "bytes");
	json_put_u64(o, b.n);
	json_key(o, "parse_ns");
	json_put_u64(o, parse);
	json_key(o, "pick_ns");
	json_put_u64(o, walk);
	json_key(o, "prefix_ns");
	json_put_u64(o, prefix);
	json_key(o, "prefix_blocks");
	json_put_u64(o, blocks);
	json_close(o, '}');
	cgn_buf_fini(&b);
}

int main(void)
{
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	json_open(&o, '{');
	for (size_t i = 0; i < CGN_COUNT(kinds); i++)
		report_kind(&o, &kinds[i]);
	json_close(&o, '}');
	(void)puts(cgn_buf_z(&b));
	cgn_buf_fini(&b);
	return 0;
}
