/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/routing/prompttail.h"

#include "base/mix/mix.h"

#include <stdatomic.h>
#include <stdlib.h>

#define PROMPTTAIL_TAG 0x7a117ab1U
#define MIN_BYTES      ((size_t)4096)
#define PROMPT_BITS    24
#define ANSWER_BITS    16
#define PRINT_SHIFT    (PROMPT_BITS + ANSWER_BITS)
#define PROMPT_MAX     ((UINT64_C(1) << PROMPT_BITS) - 1)
#define ANSWER_MAX     ((UINT64_C(1) << ANSWER_BITS) - 1)

struct prompttail_table {
	uint32_t tag;
	uint64_t mask;           /* Mask of pair numbers. */
	_Atomic uint64_t *words; /* Two per pair, the newer first. */
};

static uint64_t key_of(uint64_t digest, uint64_t node)
{
	return mix_stafford(digest ^ node * MIX_GOLDEN);
}

static uint64_t word_of(uint64_t key, struct prompttail tail)
{
	uint64_t prompt = tail.prompt < PROMPT_MAX ? tail.prompt : PROMPT_MAX;
	uint64_t answer = tail.answer < ANSWER_MAX ? tail.answer : ANSWER_MAX;
	return key >> PRINT_SHIFT << PRINT_SHIFT | answer << PROMPT_BITS | prompt;
}

static uint64_t load_relaxed(const _Atomic uint64_t *p)
{
	return atomic_load_explicit(p, memory_order_relaxed);
}

static _Atomic uint64_t *pair_of(const struct prompttail_table *t, uint64_t key)
{
	return &t->words[(key & t->mask) * 2];
}

CGN_RC prompttail_new(size_t bytes, struct prompttail_table **out, struct cgn_err *err)
{
	size_t want = MIN_BYTES;
	while (want <= bytes / 2)
		want *= 2;
	struct prompttail_table *t = calloc(1, sizeof *t);
	if (t != NULL)
		t->words = calloc(want / sizeof *t->words, sizeof *t->words);
	if (t == NULL || t->words == NULL) {
		free(t);
		return CGN_FAIL(err, NO_MEMORY, "table of tails: no %zu bytes", want);
	}
	t->tag = PROMPTTAIL_TAG;
	t->mask = want / (2 * sizeof *t->words) - 1;
	*out = t;
	return CGN_OK;
}

void prompttail_free(struct prompttail_table **take)
{
	struct prompttail_table *t = CGN_TAKE_LIVE(take, PROMPTTAIL_TAG);
	if (t == NULL)
		return;
	t->tag = 0;
	free(t->words);
	free(t);
}

void prompttail_put(struct prompttail_table *t, uint64_t digest, uint64_t node, struct prompttail tail)
{
	CGN_LIVE(t, PROMPTTAIL_TAG);
	uint64_t key = key_of(digest, node);
	_Atomic uint64_t *pair = pair_of(t, key);
	uint64_t newer = load_relaxed(&pair[0]), word = word_of(key, tail);
	if ((newer ^ word) >> PRINT_SHIFT != 0)
		atomic_store_explicit(&pair[1], newer, memory_order_relaxed);
	atomic_store_explicit(&pair[0], word, memory_order_relaxed);
}

struct prompttail prompttail_get(const struct prompttail_table *t, uint64_t digest, uint64_t node)
{
	CGN_LIVE(t, PROMPTTAIL_TAG);
	uint64_t key = key_of(digest, node);
	const _Atomic uint64_t *pair = pair_of(t, key);
	for (unsigned i = 0; i < 2; i++) {
		uint64_t word = load_relaxed(&pair[i]);
		if (word != 0 && (word ^ key) >> PRINT_SHIFT == 0)
			return (struct prompttail){word & PROMPT_MAX, word >> PROMPT_BITS & ANSWER_MAX};
	}
	return (struct prompttail){0, 0};
}

size_t prompttail_bytes(const struct prompttail_table *t)
{
	CGN_LIVE(t, PROMPTTAIL_TAG);
	return (t->mask + 1) * 2 * sizeof *t->words + sizeof *t;
}
