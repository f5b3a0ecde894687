/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/text/tokens.h"

#include <stdlib.h>

#include "base/core/err.h"
#include "base/mix/mix.h"

#define DIGITS_AT 256U
#define WORDS_AT  1366U
#define WORD_MAX  5
#define WORD_IDS  12356630U /* 26 + 26^2 + ... + 26^5: one variant of words. */

enum { WORD_SPACE = 1, WORD_CAPITAL = 2 };

static const uint32_t word_base[WORD_MAX + 1] = {0, 0, 26, 702, 18278, 475254};
static const uint32_t digit_base[4] = {0, 0, 10, 110};

uint64_t sim_hash(struct cgn_str s)
{
	return mix64(mix_fnv1a(MIX_GOLDEN ^ s.n, s.p, s.n));
}

static inline bool is_letter(char c)
{
	return ((uint32_t)(uint8_t)c | 0x20) - 'a' < 26;
}

static inline bool is_upper(char c)
{
	return c >= 'A' && c <= 'Z';
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Cut one word; its letters begin at |at|: 0, or 1 behind a space. */
static inline size_t cut_word(struct cgn_str s, size_t at, uint32_t *id)
{
	uint32_t variant = (at > 0 ? WORD_SPACE : 0U) | (is_upper(s.p[at]) ? WORD_CAPITAL : 0U);
	uint32_t value = (uint32_t)((s.p[at] | 0x20) - 'a');
	size_t letters = 1;
	const char *p = s.p + at;
	size_t most = s.n - at < WORD_MAX ? s.n - at : WORD_MAX;
	for (; letters < most; letters++) {
		uint32_t letter = (uint32_t)(uint8_t)p[letters] - 'a';
		if (letter >= 26)
			break;
		value = value * 26 + letter;
	}
	*id = WORDS_AT + variant * WORD_IDS + word_base[letters] + value;
	return at + letters;
}

static size_t cut_digits(struct cgn_str s, uint32_t *id)
{
	uint32_t value = 0;
	size_t n = 0;
	for (; n < 3 && n < s.n && is_digit(s.p[n]); n++)
		value = value * 10 + (uint32_t)(s.p[n] - '0');
	*id = DIGITS_AT + digit_base[n] + value;
	return n;
}

static inline size_t cut_token(struct cgn_str s, uint32_t *id)
{
	size_t at = s.p[0] == ' ' && s.n > 1; /* Most tokens are a word behind a space. */
	if (is_letter(s.p[at]))
		return cut_word(s, at, id);
	if (is_digit(s.p[0]))
		return cut_digits(s, id);
	*id = (uint8_t)s.p[0];
	return 1;
}

struct cgn_str sim_token_cut(struct cgn_str *rest, uint32_t *id)
{
	CGN_MUST(rest->n > 0);
	struct cgn_str s = *rest;
	size_t n = cut_token(s, id);
	*rest = (struct cgn_str){s.p + n, s.n - n};
	return (struct cgn_str){s.p, n};
}

static size_t word_text(uint32_t id, char *out)
{
	uint32_t variant = id / WORD_IDS, value = id % WORD_IDS;
	size_t letters = WORD_MAX, at = 0;
	while (value < word_base[letters])
		letters--;
	value -= word_base[letters];
	if (variant & WORD_SPACE)
		out[at++] = ' ';
	for (size_t i = letters; i-- > 0; value /= 26)
		out[at + i] = (char)('a' + value % 26);
	if (variant & WORD_CAPITAL)
		out[at] = (char)(out[at] - 0x20);
	return at + letters;
}

static size_t digits_text(uint32_t id, char *out)
{
	size_t n = id >= digit_base[3] ? 3 : id >= digit_base[2] ? 2 : 1;
	uint32_t value = id - digit_base[n];
	for (size_t i = n; i-- > 0; value /= 10)
		out[i] = (char)('0' + value % 10);
	return n;
}

static const char *const markers[] = {"<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"};

static size_t marker_text(uint32_t id, char *out)
{
	if (id < SIM_TOK_SYSTEM || id > SIM_TOK_LAST)
		return 0;
	const char *name = id < SIM_TOK_PATCH_0 ? markers[id - SIM_TOK_SYSTEM] : "<|image|>";
	size_t n = strlen(name);
	memcpy(out, name, n);
	return n;
}

size_t sim_token_text(uint32_t id, char out[SIM_TOKEN_TEXT_MAX])
{
	if (id >= WORDS_AT + 4 * WORD_IDS)
		return marker_text(id, out);
	if (id >= WORDS_AT)
		return word_text(id - WORDS_AT, out);
	if (id >= DIGITS_AT)
		return digits_text(id - DIGITS_AT, out);
	out[0] = (char)id;
	return 1;
}

uint32_t sim_token_any(uint64_t draw)
{
	return WORDS_AT + (uint32_t)(draw % (4 * (uint64_t)WORD_IDS));
}

void sim_chain_init(struct sim_chain *c, const struct sim_chain_cfg *cfg)
{
	CGN_MUST(cfg->block_tokens > 0 && cfg->salt.n <= ENGINEMODEL_SALT_MAX);
	*c = (struct sim_chain){.block_tokens = cfg->block_tokens,
		.max_tokens = cfg->max_tokens,
		.keep = cfg->keep};
	c->root = mix64(sim_hash(cfg->model) + 3 * sim_hash(cfg->salt));
	c->model = cfg->model_index;
	c->salt = cfg->salt;
	if (c->keep) /* A LoRA counts as a model here. */
		c->last = digest_chain_root(cfg->model, CGN_STR(""), cfg->salt);
}

void sim_chain_fini(struct sim_chain *c)
{
	free(c->hashes);
	c->hashes = NULL;
	c->n = c->cap = 0;
	enginemodel_contents_free(&c->contents);
}

/* Make room for |cap| blocks in total. */
static void chain_grow(struct sim_chain *c, uint32_t cap)
{
	struct enginemodel_contents *t = c->contents;
	if (t != NULL) {
		t->tokens = CGN_GROWN(t->tokens, (size_t)cap * c->block_tokens);
		t->digests = CGN_GROWN(t->digests, cap);
		t->names = CGN_GROWN(t->names, cap);
	}
	c->hashes = CGN_GROWN(c->hashes, cap);
	c->cap = cap;
}

static void contents_begin(struct sim_chain *c)
{
	c->contents = CGN_NEW(struct enginemodel_contents);
	c->contents->model = c->model;
	if (c->salt.n > 0) {
		struct enginemodel_salt *salt = cgn_zeroed(1, sizeof *salt + c->salt.n, CGN_HERE);
		*salt = (struct enginemodel_salt){.refs = 1, .n = (uint32_t)c->salt.n};
		memcpy(salt->text, c->salt.p, c->salt.n);
		c->contents->salt = salt;
	}
	c->salt = (struct cgn_str){0};
}

/* Add |id| to the contents of the block being filled. */
static void contents_add(struct sim_chain *c, uint32_t id)
{
	if (c->contents == NULL)
		contents_begin(c);
	if (c->n == c->cap)
		chain_grow(c, c->cap == 0 ? 32 : c->cap * 2);
	uint32_t *block = c->contents->tokens + (size_t)c->n * c->block_tokens;
	block[c->in_block] = id;
	if (c->in_block + 1 < c->block_tokens)
		return;
	/* Little-endian, as all supported hosts. */
	struct cgn_str bytes = {(const char *)block, c->block_tokens * sizeof *block};
	c->last = digest_chain_next(&c->last, bytes);
	c->contents->digests[c->n] = digest_short(&c->last);
	c->contents->names[c->n] = c->last;
}

static void chain_close_block(struct sim_chain *c)
{
	c->root = mix64(c->root ^ c->part);
	c->digest = mix64(c->digest ^ c->part);
	c->part = 0;
	c->in_block = 0;
	if (c->n == c->cap)
		chain_grow(c, c->cap == 0 ? 32 : c->cap * 2);
	c->hashes[c->n++] = c->root;
}

void sim_chain_add(struct sim_chain *c, uint32_t id)
{
	if (++c->n_tokens > c->max_tokens)
		return;
	if (c->keep)
		contents_add(c, id);
	c->part = mix_golden(c->part ^ (id + 1U));
	c->part ^= c->part >> 29;
	if (++c->in_block == c->block_tokens)
		chain_close_block(c);
}

void sim_chain_text(struct sim_chain *c, struct cgn_str text)
{
	while (text.n > 0) {
		uint32_t id = 0;
		size_t n = cut_token(text, &id);
		text = (struct cgn_str){text.p + n, text.n - n};
		sim_chain_add(c, id);
	}
}

/* Return the marker that |text| begins with; 0: none. */
static uint32_t marker_at(struct cgn_str text, size_t *n)
{
	for (uint32_t i = 0; i < CGN_COUNT(markers); i++) {
		*n = strlen(markers[i]);
		if (cgn_str_starts(text, markers[i]))
			return SIM_TOK_SYSTEM + i;
	}
	return 0;
}

void sim_chain_marked(struct sim_chain *c, struct cgn_str text)
{
	size_t plain = 0, n = 0;
	while (plain < text.n) {
		uint32_t id = text.p[plain] == '<'
			? marker_at((struct cgn_str){text.p + plain, text.n - plain}, &n)
			: 0;
		plain++;
		if (id == 0)
			continue;
		sim_chain_text(c, (struct cgn_str){text.p, plain - 1});
		sim_chain_add(c, id);
		text = (struct cgn_str){text.p + plain - 1 + n, text.n - (plain - 1) - n};
		plain = 0;
	}
	sim_chain_text(c, text);
}

/* Record an image, as long as kept tokens allow. */
static void note_image(struct sim_chain *c, uint64_t hash)
{
	if (c->contents == NULL)
		contents_begin(c);
	struct enginemodel_contents *t = c->contents;
	if (t->n_images == t->cap_images) {
		t->cap_images = t->cap_images == 0 ? 4 : t->cap_images * 2;
		t->images = CGN_GROWN(t->images, t->cap_images);
	}
	t->images[t->n_images++] = (struct enginemodel_image){hash, c->n_tokens};
}

void sim_chain_image(struct sim_chain *c, struct cgn_str source)
{
	uint64_t h = sim_hash(source);
	if (c->keep && c->n_tokens < c->max_tokens)
		note_image(c, h);
	for (unsigned i = 0; i < SIM_IMAGE_TOKENS; i++)
		sim_chain_add(c, SIM_TOK_PATCH_0 + (uint32_t)(mix64(h + i) & 0xffff));
}

uint64_t sim_chain_digest(const struct sim_chain *c)
{
	return mix64(c->digest ^ mix64(c->part + c->n_tokens));
}

static void contents_copy(struct sim_chain *to, const struct sim_chain *from)
{
	const struct enginemodel_contents *old = from->contents;
	struct enginemodel_contents *t = to->contents;
	size_t tokens = (size_t)from->n * from->block_tokens + from->in_block;
	memcpy(t->tokens, old->tokens, tokens * sizeof *t->tokens);
	memcpy(t->digests, old->digests, from->n * sizeof *t->digests);
	memcpy(t->names, old->names, from->n * sizeof *t->names);
	t->model = old->model;
	t->salt = enginemodel_salt_ref(old->salt);
	if (old->n_images > 0) {
		t->images = CGN_GROWN(t->images, old->n_images);
		memcpy(t->images, old->images, old->n_images * sizeof *t->images);
		t->n_images = t->cap_images = old->n_images;
	}
}

void sim_chain_copy(struct sim_chain *to, const struct sim_chain *from)
{
	*to = *from;
	to->hashes = NULL;
	to->contents = from->contents != NULL ? CGN_NEW(struct enginemodel_contents) : NULL;
	to->cap = 0;
	chain_grow(to, from->n + 16);
	if (from->contents != NULL)
		contents_copy(to, from);
	if (from->n > 0)
		memcpy(to->hashes, from->hashes, from->n * sizeof *from->hashes);
}
