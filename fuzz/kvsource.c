/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz kvsource: an engine whose hash of a block is the prompt up to its end reports blocks and pages of
 * several sizes, in any order, with any of them left out. Each digest that the source holds must be that of a
 * prompt whose end was reported. */
#include "policy/kv/kvsource/kvsource.h"
#include "base/digest/digest.h"
#include "base/msgpack/msgpack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define BT    4  /* Block size in tokens. */
#define DEPTH 12 /* Tokens of the longest prompt; each is 0 or 1. */

/* A prompt: 1, then its tokens as bits; with the LoRA's bit above. */
#define LORA    (1U << (DEPTH + 2))
#define PROMPTS (2 * LORA)

struct world {
	struct holdings *h;
	struct kvsource *s;
	uint64_t seq;
	cgn_nsec now;
	bool told[PROMPTS]; /* A block with this end was reported. */
};

static unsigned depth_of(unsigned prompt)
{
	unsigned d = 0;
	for (prompt &= LORA - 1; prompt > 1; prompt >>= 1)
		d++;
	return d;
}

static unsigned prompt_prefix(unsigned prompt, unsigned depth)
{
	return (prompt & LORA) | (prompt & (LORA - 1)) >> (depth_of(prompt) - depth);
}

static uint64_t digest_at(unsigned prompt)
{
	struct digest d =
		digest_chain_root(cgn_str_of((prompt & LORA) != 0 ? "lora" : "m"), CGN_STR(""), CGN_STR(""));
	for (unsigned at = BT; at <= depth_of(prompt); at += BT) {
		char bytes[4 * BT] = {0};
		for (unsigned i = 0; i < BT; i++)
			bytes[4 * i] = (char)(prompt_prefix(prompt, at - BT + i + 1) & 1);
		d = digest_chain_next(&d, (struct cgn_str){bytes, sizeof bytes});
	}
	return digest_short(&d);
}

static void check_one(void *user, uint64_t digest, unsigned tiers)
{
	const struct world *w = user;
	bool is_one = false;
	(void)tiers;
	for (unsigned p = 1; p < PROMPTS && !is_one; p++)
		is_one = w->told[p] && depth_of(p) % BT == 0 && digest_at(p) == digest;
	CGN_MUST(is_one);
}

static void world_check(struct world *w)
{
	holdings_each(w->h, BLOCK_RANGES, check_one, w);
}

static void source_give(struct world *w, enum kvsource_input_type type, struct cgn_str payload)
{
	const struct kvsource_input in = {.type = type, .seq = w->seq, .payload = payload, .why = "fuzz"};
	struct kvsource_orders out;
	kvsource_step(w->s, &in, w->now, &out);
	CGN_MUST(kvsource_state(w->s) != KVSOURCE_DEMOTED);
}

/* Append an event of |blocks| blocks of |size| tokens each that end with |prompt|. */
static void put_stored(struct world *w, struct cgn_buf *b, unsigned prompt, unsigned size, unsigned blocks)
{
	unsigned end = depth_of(prompt), begin = end - blocks * size;
	msgpack_put_array(b, 8);
	msgpack_put_z(b, "BlockStored");
	msgpack_put_array(b, blocks);
	for (unsigned i = 1; i <= blocks; i++) {
		msgpack_put_u64(b, prompt_prefix(prompt, begin + i * size));
		/* A longer block of the engine also reports the product's blocks within it. */
		for (unsigned at = begin + (i - 1) * size + 1; at <= begin + i * size; at++)
			w->told[prompt_prefix(prompt, at)] |= size >= BT || at == begin + i * size;
	}
	if (begin > 0)
		msgpack_put_u64(b, prompt_prefix(prompt, begin));
	else
		msgpack_put_nil(b);
	msgpack_put_array(b, blocks * size);
	for (unsigned at = begin + 1; at <= end; at++)
		msgpack_put_u64(b, prompt_prefix(prompt, at) & 1);
	msgpack_put_u64(b, size);
	msgpack_put_nil(b);
	msgpack_put_nil(b);
	msgpack_put_z(b, (prompt & LORA) != 0 ? "lora" : "");
}

static void put_removed(struct cgn_buf *b, unsigned prompt)
{
	msgpack_put_array(b, 2);
	msgpack_put_z(b, "BlockRemoved");
	msgpack_put_array(b, 1);
	msgpack_put_u64(b, prompt);
}

static void event_tell(struct world *w, unsigned what, unsigned prompt)
{
	static const unsigned sizes[] = {1, 2, BT, 2 * BT};
	unsigned size = sizes[what & 3], blocks = 1 + (what >> 2 & 3), depth = depth_of(prompt);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	msgpack_put_array(&b, 2);
	msgpack_put_f64(&b, (double)w->seq);
	msgpack_put_array(&b, 1);
	if ((what & 0x10) != 0)
		put_removed(&b, prompt);
	else if (depth % size == 0 && blocks * size <= depth)
		put_stored(w, &b, prompt, size, blocks);
	else
		return;
	source_give(w, KVSOURCE_IN_LIVE, cgn_buf_view(&b));
	w->seq++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	const struct kvsource_cfg cfg = {.model = "m", .lora_is_model = true, .block_tokens = BT};
	static struct world w;
	struct cgn_err err = {0};
	w = (struct world){.now = CGN_SEC};
	w.h = holdings_new(1000000, NULL, NULL);
	CGN_MUST(cgn_ok(kvsource_new(&cfg, w.h, &w.s, &err)));
	source_give(&w, KVSOURCE_IN_CONNECTED, (struct cgn_str){0});
	for (size_t i = 0; i + 3 <= n && i < 300; i += 3) {
		unsigned prompt =
			(data[i + 1] | (unsigned)data[i + 2] << 8) & (((1U << (DEPTH + 1)) - 1) | LORA);
		if ((prompt & (LORA - 1)) > 1)
			event_tell(&w, data[i], prompt);
	}
	world_check(&w);
	kvsource_free(&w.s);
	CGN_MUST(holdings_count(w.h) == 0);
	holdings_free(&w.h);
	return 0;
}
