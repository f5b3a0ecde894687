/* SPDX-License-Identifier: Apache-2.0 */
/* prefix: hashes the body's pieces of text directly, without rendering them into memory. Marks that are rare
 * in text separate what a template would separate. They may be ambiguous: a false match costs a cache
 * miss. */
#include "policy/text/prefix/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "base/digest/digest.h"

/* Bounds of objects in tools and calls, whose members are sorted. An object beyond them ends the chain. They do
 * not depend on the rest of the body: prompts with a common beginning have chains that end at the same place. */
#define MEMBERS_MAX 4096               /* Members of one object. */
#define SORTING_MAX ((size_t)4 << 20)  /* Memory for sorting an object and those around it. */
#define SCANNED_MAX ((size_t)64 << 20) /* Bytes of all objects; an inner one counts once per level. */

enum mark { MARK_ITEM = 0x1e, MARK_FIELD = 0x1f, MARK_BLOB = 0x1d };

struct render {
	struct digest_chain chain;
	size_t sorting, scanned; /* Memory in use and bytes scanned for objects. */
	bool stop;               /* The chain has its maximum length. */
	bool foreign;            /* The body has an unknown shape. */
};

static void render_put(void *arg, struct cgn_str piece)
{
	struct render *r = arg;
	if (r->stop)
		return;
	digest_chain_add(&r->chain, piece);
	r->stop = digest_chain_full(&r->chain);
}

static void put_mark(struct render *r, enum mark mark)
{
	const char byte = (char)mark;
	render_put(r, (struct cgn_str){&byte, 1});
}

static bool is_there(struct json_val v)
{
	return v.raw.p != NULL && v.type != JSON_NULL;
}

/* Canonical JSON: no white space, no escapes, sorted keys. */

struct member {
	struct cgn_str key;
	struct json_val value;
};

static int by_key(const void *left, const void *right)
{
	const struct member *a = left, *b = right;
	size_t n = a->key.n < b->key.n ? a->key.n : b->key.n;
	int order = n > 0 ? memcmp(a->key.p, b->key.p, n) : 0;
	if (order != 0)
		return order;
	if (a->key.n != b->key.n)
		return a->key.n < b->key.n ? -1 : 1;
	return a->value.raw.p < b->value.raw.p ? -1 : 1; /* Repeated keys keep their order. */
}

static size_t count_members(struct json_val object)
{
	struct json_iter it = json_iter_of(object);
	struct cgn_str key;
	struct json_val value;
	size_t n = 0;
	while (n <= MEMBERS_MAX && json_next_member(&it, &key, &value))
		n++;
	return n;
}

static bool has_escape(struct cgn_str raw)
{
	return memchr(raw.p, '\\', raw.n) != NULL;
}

/* Return the bytes that the members of |object| need for sorting: a row each, and room for keys with escapes. */
static size_t sorting_bytes(struct json_val object, size_t n)
{
	struct json_iter it = json_iter_of(object);
	struct cgn_str key;
	struct json_val value;
	size_t bytes = n * sizeof(struct member);
	while (json_next_member(&it, &key, &value))
		bytes += has_escape(key) ? key.n : 0;
	return bytes;
}

/* Write the rows, and the unescaped keys behind them. */
static void members_fill(struct json_val object, struct member *members, size_t n)
{
	struct json_iter it = json_iter_of(object);
	char *room = (char *)(members + n);
	struct cgn_str raw;
	for (size_t i = 0; i < n && json_next_member(&it, &raw, &members[i].value); i++) {
		members[i].key = raw;
		if (!has_escape(raw))
			continue;
		struct cgn_buf b = cgn_buf_over(room, raw.n);
		json_str_to((struct json_val){JSON_STRING, {raw.p - 1, raw.n + 2}}, &b);
		members[i].key = cgn_buf_view(&b);
		room += raw.n;
	}
}

/* Return the members of |object| in order, for free(); NULL when a bound is reached or there is no memory. Adds
 * to r->sorting what free() gives back. */
static struct member *sorted_members(struct render *r, struct json_val object, size_t n, size_t *bytes)
{
	r->scanned += object.raw.n;
	if (n > MEMBERS_MAX || r->scanned > SCANNED_MAX)
		return NULL;
	*bytes = sorting_bytes(object, n);
	struct member *members = *bytes <= SORTING_MAX - r->sorting ? malloc(*bytes) : NULL;
	if (members == NULL)
		return NULL;
	r->sorting += *bytes;
	members_fill(object, members, n);
	qsort(members, n, sizeof *members, by_key);
	return members;
}

static void put_value(struct render *r, struct json_val v);

static void put_object(struct render *r, struct json_val object)
{
	size_t n = count_members(object), bytes = 0;
	struct member *members = n > 0 ? sorted_members(r, object, n, &bytes) : NULL;
	r->stop = r->stop || (n > 0 && members == NULL);
	render_put(r, CGN_STR("{"));
	for (size_t i = 0; i < n && !r->stop; i++) {
		render_put(r, members[i].key);
		render_put(r, CGN_STR(":"));
		put_value(r, members[i].value);
		render_put(r, CGN_STR(","));
	}
	render_put(r, CGN_STR("}"));
	r->sorting -= members != NULL ? bytes : 0;
	free(members);
}

static void put_array(struct render *r, struct json_val array)
{
	struct json_iter it = json_iter_of(array);
	render_put(r, CGN_STR("["));
	for (struct json_val elem; !r->stop && json_next_elem(&it, &elem);) {
		put_value(r, elem);
		render_put(r, CGN_STR(","));
	}
	render_put(r, CGN_STR("]"));
}

/* Recursion is bounded by json_parse's depth. */
static void put_value(struct render *r, struct json_val v)
{
	if (v.type == JSON_OBJECT)
		put_object(r, v);
	else if (v.type == JSON_ARRAY)
		put_array(r, v);
	else if (v.type == JSON_STRING)
		json_str_pieces(v, render_put, r);
	else
		render_put(r, v.raw);
}

/* Content: text, or parts, some of which may be media. */

/* An image is one place in the prompt, whatever the size of its data. */
static void put_blob(struct render *r, struct json_val string)
{
	struct digest_stream s;
	digest_stream_start(&s);
	json_str_pieces(string, digest_stream_add, &s);
	struct digest d = digest_stream_end(&s);
	put_mark(r, MARK_BLOB);
	render_put(r, (struct cgn_str){(const char *)d.b, sizeof d.b});
}

static void put_media(struct render *r, struct json_val media)
{
	static const char *const keys[] = {"url", "data", "file_data", "file_id"};
	struct json_val v[CGN_COUNT(keys)];
	if (media.type == JSON_STRING) {
		put_blob(r, media);
		return;
	}
	json_pick(media, keys, CGN_COUNT(keys), v);
	for (size_t i = 0; i < CGN_COUNT(keys); i++) {
		if (is_there(v[i]) && v[i].type == JSON_STRING) {
			put_blob(r, v[i]);
			return;
		}
	}
	put_value(r, media);
}

static void put_content(struct render *r, struct json_val content);

enum part_key { PART_TEXT, PART_CONTENT, PART_MEDIA };

static void put_part(struct render *r, struct json_val part)
{
	static const char *const keys[] = {"text", "content", "image_url", "video_url", "audio_url",
		"input_audio", "source", "file", "image"};
	struct json_val v[CGN_COUNT(keys)];
	json_pick(part, keys, CGN_COUNT(keys), v);
	if (is_there(v[PART_TEXT]) && v[PART_TEXT].type == JSON_STRING) {
		json_str_pieces(v[PART_TEXT], render_put, r);
		return;
	}
	if (is_there(v[PART_CONTENT])) { /* A tool's result. */
		put_content(r, v[PART_CONTENT]);
		return;
	}
	for (size_t i = PART_MEDIA; i < CGN_COUNT(keys); i++) {
		if (is_there(v[i])) {
			put_media(r, v[i]);
			return;
		}
	}
	put_value(r, part);
}

static void put_parts(struct render *r, struct json_val parts)
{
	struct json_iter it = json_iter_of(parts);
	bool first = true;
	for (struct json_val part; !r->stop && json_next_elem(&it, &part); first = false) {
		if (!first)
			put_mark(r, MARK_FIELD);
		put_part(r, part);
	}
}

static void put_content(struct render *r, struct json_val content)
{
	if (content.type == JSON_STRING)
		json_str_pieces(content, render_put, r);
	else if (content.type == JSON_ARRAY)
		put_parts(r, content);
	else
		r->foreign = true;
}

/* ---- messages and items ---- */

static void put_system(struct render *r, struct json_val content)
{
	if (!is_there(content))
		return;
	put_mark(r, MARK_ITEM);
	render_put(r, CGN_STR("system"));
	put_mark(r, MARK_FIELD);
	put_content(r, content);
}

enum message_key { MESSAGE_ROLE, MESSAGE_CONTENT, MESSAGE_EXTRA };

static void put_message(struct render *r, struct json_val message)
{
	static const char *const keys[] = {"role", "content", "name", "reasoning_content", "tool_calls",
		"function_call", "tool_call_id"};
	struct json_val v[CGN_COUNT(keys)];
	json_pick(message, keys, CGN_COUNT(keys), v);
	put_mark(r, MARK_ITEM);
	/* An item of /v1/responses other than a message: a call, its output, reasoning. */
	if (!is_there(v[MESSAGE_ROLE])) {
		put_value(r, message);
		return;
	}
	put_value(r, v[MESSAGE_ROLE]);
	put_mark(r, MARK_FIELD);
	for (size_t i = MESSAGE_EXTRA; i < CGN_COUNT(keys); i++) {
		if (is_there(v[i])) {
			render_put(r, cgn_str_of(keys[i]));
			put_value(r, v[i]);
			put_mark(r, MARK_FIELD);
		}
	}
	if (is_there(v[MESSAGE_CONTENT]))
		put_content(r, v[MESSAGE_CONTENT]);
}

static void put_messages(struct render *r, struct json_val messages)
{
	if (messages.type != JSON_ARRAY) {
		r->foreign = true;
		return;
	}
	struct json_iter it = json_iter_of(messages);
	for (struct json_val message; !r->stop && !r->foreign && json_next_elem(&it, &message);) {
		if (message.type == JSON_OBJECT)
			put_message(r, message);
		else
			r->foreign = true;
	}
}

/* Hash "prompt" or "input": a text, texts, tokens, lists of tokens, or items. */
static void put_input(struct render *r, struct json_val input)
{
	if (input.type == JSON_STRING) {
		put_mark(r, MARK_ITEM);
		json_str_pieces(input, render_put, r);
		return;
	}
	if (input.type != JSON_ARRAY) {
		r->foreign = true;
		return;
	}
	struct json_iter it = json_iter_of(input);
	for (struct json_val elem; !r->stop && json_next_elem(&it, &elem);) {
		if (elem.type == JSON_OBJECT) {
			put_message(r, elem);
		} else {
			put_mark(r, MARK_ITEM);
			put_value(r, elem);
		}
	}
}

static void put_tools(struct render *r, struct json_val tools)
{
	if (!is_there(tools))
		return;
	put_mark(r, MARK_ITEM);
	put_value(r, tools);
}

enum body_key {
	BODY_TOOLS,
	BODY_FUNCTIONS,
	BODY_SYSTEM,
	BODY_INSTRUCTIONS,
	BODY_PREVIOUS,
	BODY_MESSAGES,
	BODY_PROMPT,
	BODY_INPUT,
	BODY_KEYS
};

static void put_body(struct render *r, const struct json_val v[BODY_KEYS])
{
	put_tools(r, v[BODY_TOOLS]);
	put_tools(r, v[BODY_FUNCTIONS]);
	put_system(r, v[BODY_SYSTEM]);
	put_system(r, v[BODY_INSTRUCTIONS]);
	put_tools(r, v[BODY_PREVIOUS]); /* The content that the engine stored under this id comes first. */
	if (is_there(v[BODY_MESSAGES]))
		put_messages(r, v[BODY_MESSAGES]);
	else if (is_there(v[BODY_PROMPT]))
		put_input(r, v[BODY_PROMPT]);
	else if (is_there(v[BODY_INPUT]))
		put_input(r, v[BODY_INPUT]);
	else
		r->foreign = true;
}

static void root_add(struct digest_stream *s, struct json_val v)
{
	if (is_there(v) && v.type == JSON_STRING)
		json_str_pieces(v, digest_stream_add, s);
	else if (is_there(v))
		digest_stream_add(s, v.raw);
}

struct digest prefix_root(struct cgn_str model, struct cgn_str salt, struct json_val body)
{
	static const char *const keys[] = {"lora_path", "lora", "cache_salt"};
	struct json_val v[CGN_COUNT(keys)];
	struct digest_stream s;
	json_pick(body, keys, CGN_COUNT(keys), v);
	digest_root_start(&s, model);
	root_add(&s, is_there(v[0]) ? v[0] : v[1]);
	digest_root_end_part(&s);
	if (salt.n > 0)
		digest_stream_add(&s, salt);
	else
		root_add(&s, v[2]);
	digest_root_end_part(&s);
	return digest_stream_end(&s);
}

struct prefix_chain prefix_chain_make(const struct prefix_params *params, struct json_val body,
	struct cgn_arena *a)
{
	static const char *const keys[BODY_KEYS] = {
		[BODY_TOOLS] = "tools",
		[BODY_FUNCTIONS] = "functions",
		[BODY_SYSTEM] = "system",
		[BODY_INSTRUCTIONS] = "instructions",
		[BODY_PREVIOUS] = "previous_response_id",
		[BODY_MESSAGES] = "messages",
		[BODY_PROMPT] = "prompt",
		[BODY_INPUT] = "input",
	};
	struct json_val v[BODY_KEYS];
	const struct prefix_chain nothing = {NULL, 0};
	CGN_MUST(params->block_bytes > 0);
	/* The canonical form is rarely longer than the body. */
	size_t most = body.raw.n / params->block_bytes + 1;
	size_t cap = most < params->max_blocks ? most : params->max_blocks;
	struct render r; /* The buffers in it are large and need no zeros. */
	r.sorting = r.scanned = 0;
	r.stop = r.foreign = false;
	json_pick(body, keys, BODY_KEYS, v);
	uint64_t *short_digests = cap > 0 ? cgn_arena_get(a, cap * sizeof *short_digests) : NULL;
	if (short_digests == NULL)
		return nothing;
	struct digest root = prefix_root(params->model, params->salt, body);
	digest_chain_start(&r.chain, &root, params->block_bytes, short_digests, cap);
	put_body(&r, v);
	digest_chain_flush(&r.chain);
	if (r.foreign || r.chain.n == 0)
		return nothing;
	return (struct prefix_chain){short_digests, r.chain.n,
		(double)r.chain.n + (double)digest_chain_rest(&r.chain) / (double)params->block_bytes};
}
