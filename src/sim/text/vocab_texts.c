/* SPDX-License-Identifier: Apache-2.0 */
/* Walk the file twice: first to find the text of each id, then to write the bytes in the order of ids. */
#include <stdlib.h>

#include "base/codec/codec.h"
#include "sim/text/vocab_priv.h"

struct entry {
	struct cgn_str quoted; /* JSON string of the file; p == NULL: no such id. */
	bool added;
};

static bool names_byte_level(struct json_val decoder)
{
	char name[16];
	struct json_val type, list, each;
	struct cgn_buf b = cgn_buf_over(name, sizeof name);
	if (json_get(decoder, "type", &type) && type.type == JSON_STRING)
		json_str_to(type, &b);
	if (cgn_str_is(cgn_buf_view(&b), "ByteLevel"))
		return true;
	if (!json_get(decoder, "decoders", &list) || list.type != JSON_ARRAY)
		return false;
	struct json_iter it = json_iter_of(list);
	while (json_next_elem(&it, &each)) {
		if (json_get(each, "type", &type) && cgn_str_is(type.raw, "\"ByteLevel\""))
			return true;
	}
	return false;
}

/* Invert GPT-2's table: printable bytes stand for themselves, the others are numbered from U+0100. -1: not in
 * the table. */
static int byte_of(uint32_t c)
{
	uint32_t next = 256;
	for (uint32_t b = 0; b < 256; b++) {
		bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
		if ((plain ? b : next) == c)
			return (int)b;
		next += !plain;
	}
	return -1;
}

/* Return the next character of valid UTF-8. */
static uint32_t next_char(struct cgn_str *s)
{
	const uint8_t *p = (const uint8_t *)s->p;
	size_t n = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	uint32_t c = n == 1 ? p[0] : p[0] & (0x7fU >> n);
	for (size_t i = 1; i < n && i < s->n; i++)
		c = c << 6 | (p[i] & 0x3fU);
	n = n < s->n ? n : s->n;
	*s = (struct cgn_str){s->p + n, s->n - n};
	return c;
}

static void put_byte_level(struct cgn_str text, struct cgn_buf *out)
{
	while (text.n > 0) {
		struct cgn_str rest = text;
		int b = byte_of(next_char(&rest));
		if (b >= 0)
			cgn_buf_char(out, (char)b);
		else
			cgn_buf_add(out, text.p, text.n - rest.n);
		text = rest;
	}
}

static void put_characters(struct cgn_str text, struct cgn_buf *out)
{
	if (text.n == 6 && cgn_str_starts(text, "<0x") && text.p[5] == '>' && hex_digit(text.p[3]) >= 0 &&
		hex_digit(text.p[4]) >= 0) {
		cgn_buf_char(out, (char)(hex_digit(text.p[3]) * 16 + hex_digit(text.p[4])));
		return;
	}
	while (text.n > 0) {
		struct cgn_str rest = text;
		if (next_char(&rest) == 0x2581)
			cgn_buf_char(out, ' ');
		else
			cgn_buf_add(out, text.p, text.n - rest.n);
		text = rest;
	}
}

static void find_entries(struct json_val root, struct entry *all, uint32_t n)
{
	struct json_val model, vocab, added, value, content;
	struct cgn_str key;
	uint64_t id = 0;
	if (json_get(root, "model", &model) && json_get(model, "vocab", &vocab) &&
		vocab.type == JSON_OBJECT) {
		for (struct json_iter it = json_iter_of(vocab); json_next_member(&it, &key, &value);) {
			if (json_u64(value, &id) && id < n)
				all[id] = (struct entry){{key.p - 1, key.n + 2}, false};
		}
	}
	if (!json_get(root, "added_tokens", &added) || added.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(added); json_next_elem(&it, &value);) {
		id = json_get_u64(value, "id", n);
		if (id < n && json_get(value, "content", &content) && content.type == JSON_STRING)
			all[id] = (struct entry){content.raw, true};
	}
}

CGN_RC vocab_texts_read(struct json_val root, uint32_t n, struct vocab_texts *out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val decoder;
	bool byte_level = json_get(root, "decoder", &decoder) && names_byte_level(decoder);
	struct entry *all = CGN_NEW_ARRAY(struct entry, n);
	*out = (struct vocab_texts){.end = CGN_NEW_ARRAY(uint32_t, n), .n = n};
	find_entries(root, all, n);
	for (uint32_t id = 0; id < n; id++) {
		text.n = 0;
		if (all[id].quoted.p != NULL)
			json_str_to((struct json_val){JSON_STRING, all[id].quoted}, &text);
		if (all[id].added)
			cgn_buf_str(&out->bytes, cgn_buf_view(&text));
		else if (byte_level)
			put_byte_level(cgn_buf_view(&text), &out->bytes);
		else
			put_characters(cgn_buf_view(&text), &out->bytes);
		out->end[id] = (uint32_t)out->bytes.n;
	}
	free(all);
	if (!text.bad && !out->bytes.bad)
		return CGN_OK;
	vocab_texts_fini(out);
	return CGN_FAIL(err, NO_MEMORY, "no memory for %u tokens", n);
}

void vocab_texts_fini(struct vocab_texts *t)
{
	cgn_buf_fini(&t->bytes);
	free(t->end);
	*t = (struct vocab_texts){0};
}
