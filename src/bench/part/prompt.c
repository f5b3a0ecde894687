/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/part/prompt.h"

#include <stdlib.h>

#include "bench/common/report.h"
#include "bench/part/text.h"
#include "io/os/loop/loop.h"
#include "policy/text/prompt/encode.h"

#define BLOCK_TOKENS  16
#define MESSAGE_BYTES ((size_t)1200)
#define CACHE_BYTES   ((size_t)64 << 20)

struct run {
	const struct tokenizer *tokenizer;
	struct tokenizer_work *work;
	struct promptcache *cache;
	uint64_t *digests;
	size_t cap; /* Blocks. */
	size_t tokenised;
	uint64_t tokens;
};

/* Return the special token that ends a message, after which a text may be cut. */
static const char *end_of_message(const struct tokenizer *t)
{
	static const char *const names[] = {"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "</s>",
		"<|endoftext|>", "<｜end▁of▁sentence｜>"};
	size_t cut = 0;
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (tokenizer_cuts(t, cgn_str_of(names[i]), &cut, 1) == 1)
			return names[i];
	return "\n";
}

/* Append |bytes| of conversation and one more message. Returns the offset of that message. */
static size_t put_conversation(const struct tokenizer *t, size_t bytes, struct cgn_buf *out, size_t *messages)
{
	const char *end = end_of_message(t);
	size_t turn = 0;
	for (*messages = 0; turn == 0; (*messages)++) {
		turn = out->n >= bytes || out->bad ? out->n : 0;
		cgn_buf_putz(out, *messages % 2 == 0 ? "user\n" : "assistant\n");
		bench_text(out, MESSAGE_BYTES, *messages + 1);
		cgn_buf_putz(out, end);
	}
	return turn;
}

static CGN_RC make_chain(struct run *r, struct cgn_str text, double *took, struct cgn_err *err)
{
	static const struct digest root;
	struct encode e;
	struct prefix_tokens c;
	const struct prompt_encode_ask ask = {.tokenizer = r->tokenizer,
		.root = root,
		.text = text,
		.max_ids = r->cap * BLOCK_TOKENS};
	cgn_nsec from = cgn_clock_now();
	prefix_tokens_start(&c, &root, BLOCK_TOKENS, r->digests, r->cap);
	prompt_encode_open(&e, &ask);
	r->tokenised = prompt_encode_resume(&e, r->cache, &c);
	cgn_rc rc = prompt_encode_run(&e, r->work, err);
	if (cgn_ok(rc))
		prompt_encode_finish(&e, r->cache, &c);
	prompt_encode_close(&e);
	*took = report_seconds_since(from);
	r->tokens = c.n_tokens;
	return rc;
}

static void keep_best(double *best, double took)
{
	*best = *best > 0 && *best < took ? *best : took;
}

static CGN_RC one_round(struct run *r, const struct cgn_buf *text, size_t turn, struct bench_prompt *out,
	struct cgn_err *err)
{
	double took = 0;
	struct cgn_str prompt = {text->p, turn};
	promptcache_free(&r->cache);
	if ((r->cache = promptcache_new(CACHE_BYTES)) == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the cache of prompts");
	CGN_TRY(make_chain(r, prompt, &took, err));
	keep_best(&out->first, took);
	out->tokens = r->tokens;
	for (int i = 0; i < 20; i++) {
		CGN_TRY(make_chain(r, prompt, &took, err));
		keep_best(&out->repeat, took);
	}
	out->repeat_bytes = r->tokenised;
	CGN_TRY(make_chain(r, cgn_buf_view(text), &took, err));
	keep_best(&out->turn, took);
	out->turn_bytes = r->tokenised;
	out->cache_bytes = promptcache_stats(r->cache).bytes;
	return CGN_OK;
}

static void run_close(struct run *r)
{
	promptcache_free(&r->cache);
	tokenizer_work_free(&r->work);
	free(r->digests);
}

CGN_RC bench_prompt(const struct tokenizer *t, size_t tokens, uint64_t rounds, struct bench_prompt *out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_ON_EXIT(run_close) struct run r = {.tokenizer = t, .cap = 2 * tokens / BLOCK_TOKENS + 1};
	*out = (struct bench_prompt){0};
	size_t turn = put_conversation(t, 4 * tokens, &text, &out->messages);
	r.digests = calloc(r.cap, sizeof *r.digests);
	if (text.bad || r.digests == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a prompt of %zu tokens", tokens);
	r.work = tokenizer_work_new(t);
	out->bytes = turn;
	for (uint64_t i = 0; i < rounds; i++)
		CGN_TRY(one_round(&r, &text, turn, out, err));
	return CGN_OK;
}
