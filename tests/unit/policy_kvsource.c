/* SPDX-License-Identifier: Apache-2.0 */
/* kvsource: what batches make of the holdings; and a publisher with a naive cache, whose batches are lost,
 * doubled, reordered, and who dies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/core/buf.h"
#include "base/digest/digest.h"
#include "base/mix/mix.h"
#include "base/msgpack/msgpack.h"
#include "policy/kvsource/kvsource.h"

#define BT 4 /* block_tokens */

/* ---- a world of one source ---- */
struct world {
	struct holdings *h;
	struct kvsource *s;
	struct kvsource_orders o;
	cgn_nsec now;
	uint64_t seq;
};

static void world_open_as(struct world *w, const struct kvsource_cfg *cfg)
{
	struct cgn_err err = {0};
	*w = (struct world){.now = 1000 * CGN_SEC};
	assert_true(cgn_ok(holdings_new(100000, NULL, NULL, &w->h, &err)));
	assert_true(cgn_ok(kvsource_new(cfg, w->h, &w->s, &err)));
	assert_int_equal(kvsource_state(w->s), KVSOURCE_WAITING);
}

static void world_open(struct world *w, bool can_replay)
{
	world_open_as(w,
		&(struct kvsource_cfg){.model = "m",
			.lora_is_model = true,
			.block_tokens = BT,
			.can_replay = can_replay});
}

static void world_close(struct world *w)
{
	kvsource_free(&w->s);
	assert_int_equal(holdings_count(w->h), 0);
	holdings_free(&w->h);
}

static void give(struct world *w, enum kvsource_input_type type, uint64_t seq, struct cgn_str payload)
{
	struct kvsource_input in = {.type = type, .seq = seq, .payload = payload, .why = "on purpose"};
	kvsource_step(w->s, &in, w->now, &w->o);
}

static void tell(struct world *w, enum kvsource_input_type type)
{
	give(w, type, 0, (struct cgn_str){0});
}

/* Connected to a publisher that has published nothing yet. */
static void begin(struct world *w)
{
	tell(w, KVSOURCE_IN_CONNECTED);
	if (w->o.replay) {
		assert_int_equal(w->o.replay_from, 0);
		tell(w, KVSOURCE_IN_REPLAY_END);
		assert_int_equal(kvsource_state(w->s), KVSOURCE_GOOD);
	} else {
		assert_int_equal(kvsource_state(w->s), KVSOURCE_SYNCING);
	}
}

/* ---- batches ---- */
struct ev {
	char type; /* S, R, C */
	uint64_t hashes[8];
	unsigned n;
	int64_t parent; /* -1: none */
	uint32_t tokens[64];
	unsigned n_tokens, block_size;
	const char *medium, *lora, *kind;
	unsigned lora_id, group;
	const char *extra; /* raw MessagePack, repeated for each block */
	size_t extra_n;
};

static void put_opt(struct cgn_buf *b, const char *key, const char *value)
{
	msgpack_put_z(b, key);
	if (value != NULL)
		msgpack_put_z(b, value);
	else
		msgpack_put_nil(b);
}

static void put_event(struct cgn_buf *b, const struct ev *e)
{
	msgpack_put_map(b, e->type == 'C' ? 1 : e->type == 'R' ? 4 : 11);
	put_opt(b, "type",
		e->type == 'C'           ? "AllBlocksCleared"
			: e->type == 'R' ? "BlockRemoved"
					 : "BlockStored");
	if (e->type == 'C')
		return;
	msgpack_put_z(b, "block_hashes");
	msgpack_put_array(b, e->n);
	for (unsigned i = 0; i < e->n; i++)
		msgpack_put_u64(b, e->hashes[i]);
	put_opt(b, "medium", e->medium);
	msgpack_put_z(b, "group_idx");
	msgpack_put_u64(b, e->group);
	if (e->type == 'R')
		return;
	msgpack_put_z(b, "parent_block_hash");
	if (e->parent >= 0)
		msgpack_put_u64(b, (uint64_t)e->parent);
	else
		msgpack_put_nil(b);
	msgpack_put_z(b, "token_ids");
	msgpack_put_array(b, e->n_tokens);
	for (unsigned i = 0; i < e->n_tokens; i++)
		msgpack_put_u64(b, e->tokens[i]);
	msgpack_put_z(b, "block_size");
	msgpack_put_u64(b, e->block_size);
	msgpack_put_z(b, "lora_id");
	msgpack_put_u64(b, e->lora_id);
	put_opt(b, "lora_name", e->lora);
	put_opt(b, "kv_cache_spec_kind", e->kind);
	msgpack_put_z(b, "extra_keys");
	if (e->extra == NULL)
		msgpack_put_nil(b);
	else
		msgpack_put_array(b, e->n);
	for (unsigned i = 0; e->extra != NULL && i < e->n; i++)
		cgn_buf_add(b, e->extra, e->extra_n);
}

static void put_batch(struct cgn_buf *b, double ts, const struct ev *v, uint32_t n)
{
	msgpack_put_array(b, 2);
	msgpack_put_f64(b, ts);
	msgpack_put_array(b, n);
	for (uint32_t i = 0; i < n; i++)
		put_event(b, &v[i]);
}

static void live_at(struct world *w, uint64_t seq, const struct ev *e)
{
	struct cgn_buf b = {0};
	put_batch(&b, (double)seq, e, 1);
	give(w, KVSOURCE_IN_LIVE, seq, cgn_buf_view(&b));
	cgn_buf_fini(&b);
}

static void replayed_at(struct world *w, uint64_t seq, const struct ev *e)
{
	struct cgn_buf b = {0};
	put_batch(&b, (double)seq, e, 1);
	give(w, KVSOURCE_IN_REPLAYED, seq, cgn_buf_view(&b));
	cgn_buf_fini(&b);
}

static void live(struct world *w, const struct ev *e)
{
	live_at(w, w->seq++, e);
}

/* A stored event of |n| blocks of |size| tokens: tokens count up from |first|. */
static struct ev stored(uint64_t hash, unsigned n, int64_t parent, uint32_t first, unsigned size)
{
	struct ev e = {.type = 'S', .n = n, .parent = parent, .n_tokens = n * size, .block_size = size};
	for (unsigned i = 0; i < n; i++)
		e.hashes[i] = hash + i;
	for (unsigned i = 0; i < e.n_tokens; i++)
		e.tokens[i] = first + i;
	return e;
}

static struct ev removed(uint64_t hash, const char *medium)
{
	return (struct ev){.type = 'R', .hashes = {hash}, .n = 1, .medium = medium};
}

/* The digest of block |i| (from 0) of a prompt whose tokens count up from |first|. */
static uint64_t digest_at(const char *model, const char *lora, const char *salt, uint32_t first, unsigned i,
	const char *foreign)
{
	struct digest d = digest_chain_root(cgn_str_of(model), cgn_str_of(lora), cgn_str_of(salt));
	for (unsigned block = 0; block <= i; block++) {
		struct cgn_buf b = {0};
		for (unsigned t = 0; t < BT; t++) {
			uint32_t token = first + block * BT + t;
			for (unsigned shift = 0; shift < 32; shift += 8)
				cgn_buf_char(&b, (char)(uint8_t)(token >> shift));
		}
		cgn_buf_putz(&b, foreign);
		d = digest_chain_next(&d, cgn_buf_view(&b));
		cgn_buf_fini(&b);
	}
	return digest_short(&d);
}

static unsigned tiers(const struct world *w, uint32_t first, unsigned i)
{
	return holdings_tiers(w->h, digest_at("m", "", "", first, i, ""));
}

#define GPU BLOCK_TIER_BIT(BLOCK_GPU)
#define RAM BLOCK_TIER_BIT(BLOCK_RAM)

/* ---- what events mean ---- */

static void blocks_come_and_go(void **state)
{
	struct world w;
	(void)state;
	world_open(&w, true);
	begin(&w);
	struct ev e = stored(10, 3, -1, 100, BT), more = stored(13, 1, 12, 112, BT), gone = removed(13, NULL),
		  unknown = removed(77, NULL);
	live(&w, &e);
	live(&w, &more);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(tiers(&w, 100, i), GPU);
	assert_int_equal(holdings_count(w.h), 4);
	live(&w, &more); /* announced twice: one reference more */
	live(&w, &gone);
	assert_int_equal(tiers(&w, 100, 3), GPU);
	live(&w, &gone);
	live(&w, &unknown);
	assert_int_equal(tiers(&w, 100, 3), 0);
	assert_int_equal(kvsource_stats(w.s).unknown_removed, 1);
	assert_int_equal(kvsource_stats(w.s).blocks, 3);
	struct ev clear = {.type = 'C'};
	live(&w, &clear);
	assert_int_equal(holdings_count(w.h), 0);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
	assert_int_equal(kvsource_stats(w.s).next_seq, 7);
	world_close(&w);
}

static void media_count_apart(void **state)
{
	struct world w;
	(void)state;
	world_open(&w, true);
	begin(&w);
	struct ev e = stored(1, 2, -1, 0, BT),
		  offload = {.type = 'S', .hashes = {1, 2}, .n = 2, .parent = -1, .medium = "CPU"};
	struct ev gone = removed(1, NULL), gone_there = removed(1, "CPU"),
		  late = {.type = 'S', .hashes = {99}, .n = 1, .medium = "CPU"};
	live(&w, &e);
	live(&w, &offload); /* by name: without tokens */
	assert_int_equal(tiers(&w, 0, 0), GPU | RAM);
	live(&w, &gone);
	assert_int_equal(tiers(&w, 0, 0), RAM);
	live(&w, &gone); /* it is not there any more */
	assert_int_equal(kvsource_stats(w.s).unknown_removed, 1);
	live(&w, &gone_there);
	assert_int_equal(tiers(&w, 0, 0), 0);
	assert_int_equal(tiers(&w, 0, 1), GPU | RAM);
	live(&w, &late); /* a lower tier tells of what is gone */
	assert_int_equal(kvsource_stats(w.s).orphans, 1);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
	world_close(&w);
}

static void large_blocks_are_several_of_ours(void **state)
{
	struct world w;
	(void)state;
	world_open(&w, true);
	begin(&w);
	struct ev e = stored(1, 2, -1, 0, 3 * BT), chunk = stored(2, 1, -1, 0, 6 * BT),
		  next = stored(3, 1, 2, 6 * BT, 3 * BT);
	live(&w, &e);
	assert_int_equal(holdings_count(w.h), 6);
	chunk.medium = "CPU"; /* an offloaded chunk of two blocks has the hash of the second */
	live(&w, &chunk);
	live(&w, &next);
	assert_int_equal(holdings_count(w.h), 9);
	for (unsigned i = 0; i < 9; i++)
		assert_int_equal(tiers(&w, 0, i), i < 6 ? GPU | RAM : GPU);
	struct ev gone = removed(2, NULL), gone_there = removed(2, "CPU");
	live(&w, &gone);
	assert_int_equal(tiers(&w, 0, 5), RAM);
	live(&w, &gone_there);
	assert_int_equal(tiers(&w, 0, 5), 0);
	assert_int_equal(tiers(&w, 0, 2), GPU);
	assert_int_equal(kvsource_stats(w.s).unknown_removed, 0);
	world_close(&w);
}

static void a_block_size_that_does_not_fit_demotes(void **state)
{
	struct world w;
	(void)state;
	world_open(&w, true);
	begin(&w);
	struct ev ok = stored(1, 1, -1, 0, BT), bad = stored(2, 1, -1, 0, BT + 2);
	live(&w, &ok);
	live(&w, &bad);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_DEMOTED);
	assert_non_null(
		strstr(kvsource_why(w.s), "6 tokens, which does not go with the model's block_tokens = 4"));
	assert_int_equal(holdings_count(w.h), 0);
	assert_false(w.o.replay);
	assert_int_equal(w.o.wake_at, 0); /* until another incarnation */
	live(&w, &ok);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_DEMOTED);
	tell(&w, KVSOURCE_IN_DISCONNECTED);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_DEMOTED);
	begin(&w);
	world_close(&w);
}

static unsigned held_of(const struct world *w, uint32_t first)
{
	unsigned n = 0;
	while (tiers(w, first, n) == GPU)
		n++;
	return n;
}

/* SGLang's page is one token unless it is told otherwise. */
static void pages_make_a_block_together(void **state)
{
	struct world w;
	(void)state;
	world_open(&w, true);
	begin(&w);
	struct ev two = stored(10, 8, -1, 100, 1), part = stored(18, 3, 17, 108, 1),
		  end = stored(21, 1, 20, 111, 1);
	struct ev last = removed(21, NULL), before = removed(20, NULL), again = stored(16, 6, 15, 106, 1);
	live(&w, &two);
	assert_int_equal(held_of(&w, 100), 2);
	live(&w, &part);
	assert_int_equal(held_of(&w, 100), 2);
	live(&w, &end);
	assert_int_equal(held_of(&w, 100), 3);
	live(&w, &last); /* the later part of a prefix goes first */
	assert_int_equal(held_of(&w, 100), 2);
	live(&w, &before);
	live(&w, &again); /* some of these are known */
	assert_int_equal(held_of(&w, 100), 3);
	assert_int_equal(holdings_count(w.h), 3);
	struct ev wide = stored(50, 6, -1, 200, 2);
	live(&w, &wide);
	assert_int_equal(held_of(&w, 200), 3);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
	world_close(&w);
}

static void pages_whose_beginning_is_not_known_make_nothing(void **state)
{
	struct world w;
	(void)state;
	world_open(&w, true);
	begin(&w);
	struct ev start = stored(10, 3, -1, 100, 1), gone = removed(11, NULL),
		  end = stored(13, 5, 12, 103, 1), other = stored(40, 4, 39, 300, 1);
	struct ev mixed = stored(60, 1, 12, 103, BT);
	live(&w, &start);
	live(&w, &mixed); /* a whole block behind part of one */
	live(&w, &gone);
	live(&w, &end);
	live(&w, &other);
	assert_int_equal(holdings_count(w.h), 0);
	assert_true(kvsource_stats(w.s).orphans >= 10);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_PARTIAL);
	world_close(&w);
}

/* A salt or a LoRA that only some pages of a block are told of with: no block that another prompt could be
 * taken for. */
static void pages_of_two_roots_make_no_block(void **state)
{
	struct world w;
	(void)state;
	world_open(&w, true);
	begin(&w);
	struct ev lora = stored(10, 2, -1, 100, 1), end = stored(12, 2, 11, 102, 1),
		  whole = stored(30, 4, -1, 200, 1);
	lora.lora = "adapter";
	live(&w, &lora);
	live(&w, &end);
	assert_int_equal(holdings_count(w.h), 0);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_PARTIAL);
	whole.lora = "adapter";
	live(&w, &whole);
	assert_int_equal(holdings_tiers(w.h, digest_at("adapter", "", "", 200, 0, "")), GPU);
	assert_int_equal(holdings_count(w.h), 1);
	world_close(&w);
}

/* The hash that a page names as its parent was taken back and stands for a page now, which has no digest. */
static void a_parent_that_became_a_page_makes_no_block(void **state)
{
	struct world w;
	(void)state;
	world_open(&w, true);
	begin(&w);
	struct ev block = stored(9, 1, -1, 0, BT), start = stored(10, 3, 9, BT, 1), gone = removed(9, NULL),
		  page = stored(9, 1, -1, 500, 1);
	struct ev end = stored(13, 1, 12, BT + 3, 1);
	live(&w, &block);
	live(&w, &start);
	live(&w, &gone);
	live(&w, &page);
	live(&w, &end);
	assert_int_equal(holdings_count(w.h), 0);
	live(&w, &gone);
	live(&w, &block); /* now it is known again */
	live(&w, &end);
	assert_int_equal(tiers(&w, 0, 1), GPU);
	assert_int_equal(holdings_count(w.h), 2);
	world_close(&w);
}

static void pages_of_pictures_are_not_followed(void **state)
{
	struct world w;
	(void)state;
	world_open(&w, true);
	begin(&w);
	struct ev image = stored(10, 8, -1, 100, 1), text = stored(30, 8, -1, 100, 1);
	image.extra = "\x91\x92\xa2mm\x03";
	image.extra_n = 6;
	live(&w, &image);
	assert_int_equal(holdings_count(w.h), 0);
	live(&w, &text);
	assert_int_equal(held_of(&w, 100), 2);
	world_close(&w);
}

static void loras_salts_and_images_have_chains_of_their_own(void **state)
{
	struct world w;
	(void)state;
	world_open(&w, true);
	begin(&w);
	struct ev lora = stored(1, 1, -1, 0, BT), number = stored(2, 1, -1, 0, BT),
		  salt = stored(3, 1, -1, 0, BT), image = stored(4, 1, -1, 0, BT);
	lora.lora = "adapter";
	lora.lora_id = 1;
	lora.extra = "\x91\xa7"
		     "adapter";
	lora.extra_n = 9;
	number.lora_id = 7;
	salt.extra = "\x91\xa4salt";
	salt.extra_n = 6;
	image.extra = "\x91\x92\xa2mm\x03";
	image.extra_n = 6;
	live(&w, &lora);
	live(&w, &number);
	live(&w, &salt);
	live(&w, &image);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
	assert_int_equal(holdings_count(w.h), 4);
	assert_int_equal(holdings_tiers(w.h, digest_at("adapter", "", "", 0, 0, "")), GPU);
	assert_int_equal(holdings_tiers(w.h, digest_at("m", "#7", "", 0, 0, "")), GPU);
	assert_int_equal(holdings_tiers(w.h, digest_at("m", "", "salt", 0, 0, "")), GPU);
	assert_int_equal(holdings_tiers(w.h, digest_at("m", "", "", 0, 0, "\x92\xa2mm\x03")), GPU);
	assert_int_equal(tiers(&w, 0, 0), 0); /* no text has any of it */
	world_close(&w);
	world_open_as(&w, &(struct kvsource_cfg){.model = "m", .block_tokens = BT, .can_replay = true});
	begin(&w);
	live(&w, &lora); /* SGLang's rule */
	assert_int_equal(holdings_tiers(w.h, digest_at("m", "adapter", "", 0, 0, "")), GPU);
	world_close(&w);
}

static void a_block_needs_every_full_group(void **state)
{
	struct world w;
	(void)state;
	world_open(&w, true);
	begin(&w);
	struct ev full = stored(1, 2, -1, 0, BT), window = full, other = full;
	full.kind = "full_attention";
	window.kind = "sliding_window";
	window.group = 1;
	other.kind = "full_attention";
	other.group = 2;
	live(&w, &window);
	assert_int_equal(holdings_count(w.h), 2); /* nothing else is known of this model */
	live(&w, &full);
	assert_int_equal(holdings_count(w.h), 2);
	struct ev gone = removed(1, NULL);
	gone.group = 1;
	live(&w, &gone); /* a window moves on */
	assert_int_equal(holdings_count(w.h), 2);
	live(&w, &other);
	assert_int_equal(tiers(&w, 0, 1), GPU);
	gone.group = 2;
	live(&w, &gone);
	assert_int_equal(tiers(&w, 0, 0), 0);
	assert_int_equal(tiers(&w, 0, 1), GPU);
	struct ev third = stored(3, 1, 2, 2 * BT, BT);
	third.kind = "full_attention";
	live(&w, &third);
	assert_int_equal(tiers(&w, 0, 2), 0);
	third.group = 2;
	live(&w, &third);
	assert_int_equal(tiers(&w, 0, 2), GPU);
	world_close(&w);
}

static void orphans_are_not_guessed(void **state)
{
	struct world w;
	(void)state;
	world_open(&w, true);
	begin(&w);
	struct ev e = stored(5, 2, 4, 100, BT), root = stored(1, 1, -1, 0, BT);
	live(&w, &root);
	live(&w, &e);
	assert_int_equal(holdings_count(w.h), 1);
	assert_int_equal(kvsource_stats(w.s).orphans, 2);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_PARTIAL);
	struct ev clear = {.type = 'C'};
	live(&w, &clear); /* now nothing is unknown */
	assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
	world_close(&w);
}

static void too_many_blocks_demote(void **state)
{
	struct world w;
	(void)state;
	world_open_as(&w,
		&(struct kvsource_cfg){.model = "m",
			.block_tokens = BT,
			.can_replay = true,
			.max_blocks = 5});
	begin(&w);
	struct ev five = stored(1, 5, -1, 0, BT), one = stored(6, 1, -1, 50, BT);
	live(&w, &five);
	assert_int_equal(holdings_count(w.h), 5);
	live(&w, &one);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_DEMOTED);
	assert_string_equal(kvsource_why(w.s),
		"it has more than the 5 blocks that are kept of a source or of the node");
	assert_int_equal(holdings_count(w.h), 0);
	world_close(&w);
}

/* ---- the order of batches ---- */

static void a_gap_is_replayed(void **state)
{
	struct world w;
	(void)state;
	world_open(&w, true);
	begin(&w);
	struct ev e[6];
	for (unsigned i = 0; i < 6; i++) {
		e[i] = stored(i + 1, 1, (int64_t)i - (i == 0), i * BT, BT);
		e[i].parent = i == 0 ? -1 : (int64_t)i;
	}
	live_at(&w, 0, &e[0]);
	live_at(&w, 1, &e[1]);
	live_at(&w, 4, &e[4]);
	assert_true(w.o.replay);
	/* the last one again, to see that it is still the same publisher */
	assert_int_equal(w.o.replay_from, 1);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
	live_at(&w, 5, &e[5]);
	assert_int_equal(holdings_count(w.h), 2);
	for (unsigned i = 1; i < 5; i++)
		replayed_at(&w, i, &e[i]);
	tell(&w, KVSOURCE_IN_REPLAY_END);
	assert_false(w.o.replay);
	assert_int_equal(holdings_count(w.h), 6);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
	live_at(&w, 3, &e[3]); /* late */
	assert_int_equal(kvsource_stats(w.s).duplicates, 1);
	assert_int_equal(holdings_count(w.h), 6);
	world_close(&w);
}

static void what_was_before_is_learnt(void **state)
{
	struct world w;
	struct ev a = stored(1, 1, -1, 0, BT), b = stored(2, 1, 1, BT, BT), c = stored(3, 1, 2, 2 * BT, BT);
	(void)state;
	world_open(&w, true);
	tell(&w, KVSOURCE_IN_CONNECTED);
	assert_true(w.o.replay);
	live_at(&w, 2, &c);
	replayed_at(&w, 0, &a);
	replayed_at(&w, 1, &b);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_SYNCING);
	tell(&w, KVSOURCE_IN_REPLAY_END);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
	assert_int_equal(holdings_count(w.h), 3);
	world_close(&w);
	world_open(&w, true); /* the buffer does not reach back to the first */
	tell(&w, KVSOURCE_IN_CONNECTED);
	struct ev root = stored(9, 1, -1, 90, BT);
	replayed_at(&w, 7, &c);
	replayed_at(&w, 8, &root);
	tell(&w, KVSOURCE_IN_REPLAY_END);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_PARTIAL);
	assert_string_equal(kvsource_why(w.s), "events before the first that was seen are not known");
	assert_int_equal(holdings_count(w.h), 1);
	assert_int_equal(kvsource_stats(w.s).orphans, 1);
	world_close(&w);
}

static void a_restart_forgets(void **state)
{
	struct world w;
	struct ev a = stored(1, 1, -1, 0, BT), b = stored(2, 1, -1, 50, BT), c = stored(3, 1, -1, 70, BT);
	(void)state;
	for (unsigned way = 0; way < 3; way++) {
		world_open(&w, true);
		begin(&w);
		live_at(&w, 0, &a);
		live_at(&w, 1, &a);
		tell(&w, KVSOURCE_IN_DISCONNECTED);
		assert_int_equal(kvsource_state(w.s), KVSOURCE_WAITING);
		assert_int_equal(holdings_count(w.h), 1);
		tell(&w, KVSOURCE_IN_CONNECTED);
		assert_true(w.o.replay && w.o.replay_from == 1);
		if (way == 0) { /* it has published less than before */
			tell(&w, KVSOURCE_IN_REPLAY_END);
		} else if (way == 1) { /* as much and more */
			replayed_at(&w, 1, &c);
		} else {
			live_at(&w, 0, &b);
		}
		assert_true(w.o.replay);
		assert_int_equal(holdings_count(w.h), 0);
		assert_int_equal(kvsource_stats(w.s).restarts, 1);
		assert_int_equal(w.o.replay_from, 0);
		replayed_at(&w, 0, &b);
		tell(&w, KVSOURCE_IN_REPLAY_END);
		assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
		assert_int_equal(holdings_tiers(w.h, digest_at("m", "", "", 50, 0, "")), GPU);
		assert_int_equal(holdings_count(w.h), 1);
		world_close(&w);
	}
}

static void without_replay_a_gap_forgets(void **state)
{
	struct world w;
	struct ev a = stored(1, 1, -1, 0, BT), b = stored(2, 1, -1, 50, BT);
	(void)state;
	world_open(&w, false);
	begin(&w);
	live_at(&w, 0, &a);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
	live_at(&w, 2, &b);
	assert_false(w.o.replay);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_PARTIAL);
	assert_string_equal(kvsource_why(w.s), "events were lost, and no replay endpoint is configured");
	assert_int_equal(tiers(&w, 0, 0), 0);
	assert_int_equal(holdings_count(w.h), 1);
	live_at(&w, 0, &a); /* not what 0 was before the gap? that is forgotten: a restart */
	assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
	assert_int_equal(tiers(&w, 0, 0), GPU);
	world_close(&w);
	world_open(&w, false);
	begin(&w);
	live_at(&w, 41, &a);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_PARTIAL);
	world_close(&w);
}

static void a_failed_replay_rests(void **state)
{
	struct world w;
	struct ev a = stored(1, 1, -1, 0, BT), b = stored(2, 1, -1, 50, BT);
	(void)state;
	world_open(&w, true);
	begin(&w);
	live_at(&w, 0, &a);
	live_at(&w, 2, &b);
	assert_true(w.o.replay);
	w.now += KVSOURCE_REPLAY_TIMEOUT;
	assert_true(w.o.wake_at == w.now);
	tell(&w, KVSOURCE_IN_TICK);
	assert_true(w.o.cancel_replay);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_PARTIAL);
	assert_string_equal(kvsource_why(w.s), "the replay failed: no answer for 5 s");
	assert_int_equal(holdings_count(w.h), 1); /* b; a is not sure any more */
	live_at(&w, 5, &b);                       /* another gap does not ask again yet */
	assert_false(w.o.replay);
	assert_true(w.o.wake_at == w.now + KVSOURCE_COOLDOWN);
	w.now = w.o.wake_at;
	tell(&w, KVSOURCE_IN_TICK);
	assert_true(w.o.replay);
	assert_int_equal(w.o.replay_from, 0);
	live_at(&w, 6, &a);
	tell(&w, KVSOURCE_IN_REPLAY_FAILED); /* what was learnt since stays */
	assert_int_equal(kvsource_state(w.s), KVSOURCE_PARTIAL);
	assert_int_equal(holdings_count(w.h), 2);
	w.now = w.o.wake_at;
	tell(&w, KVSOURCE_IN_TICK);
	while (!w.o.replay) { /* a look into the lull comes first */
		w.now = w.o.wake_at;
		tell(&w, KVSOURCE_IN_TICK);
	}
	assert_int_equal(w.o.replay_from, 0);
	replayed_at(&w, 0, &b);
	assert_int_equal(holdings_count(w.h), 1);
	for (unsigned i = 1; i <= 6; i++)
		replayed_at(&w, i, &b);
	tell(&w, KVSOURCE_IN_REPLAY_END);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
	assert_int_equal(holdings_count(w.h), 1);
	world_close(&w);
}

/* Answers without end that bring nothing: meanwhile what comes live can't be applied. */
static void a_replay_that_brings_nothing_fails(void **state)
{
	struct world w;
	struct ev a = stored(1, 1, -1, 0, BT), b = stored(2, 1, -1, 50, BT), gone = removed(1, NULL);
	(void)state;
	world_open(&w, true);
	begin(&w);
	live_at(&w, 0, &b);
	live_at(&w, 1, &a);
	w.now = w.o.wake_at;
	tell(&w, KVSOURCE_IN_TICK);
	assert_true(w.o.replay && w.o.replay_from == 1);
	live_at(&w, 2, &gone);
	for (unsigned s = 0; s < 10; s++) {
		replayed_at(&w, s % 2, s % 2 == 0 ? &b : &a);
		w.now += CGN_SEC;
		if (w.now >= w.o.wake_at)
			tell(&w, KVSOURCE_IN_TICK);
	}
	assert_int_equal(tiers(&w, 0, 0), 0);
	assert_int_equal(kvsource_stats(w.s).replay_failures, 1);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
	world_close(&w);
}

/* A replay may run thousands of batches ahead of the live events that wait in the connection. */
static void what_a_replay_overtook_is_no_restart(void **state)
{
	struct world w;
	struct ev a = stored(1, 1, -1, 0, BT), other = removed(77, NULL);
	(void)state;
	world_open(&w, true);
	tell(&w, KVSOURCE_IN_CONNECTED);
	replayed_at(&w, 0, &a);
	for (unsigned i = 1; i < 3000; i++)
		replayed_at(&w, i, &other);
	tell(&w, KVSOURCE_IN_REPLAY_END);
	for (unsigned i = 500; i < 3000; i++)
		live_at(&w, i, &other);
	assert_false(w.o.replay);
	assert_int_equal(kvsource_stats(w.s).duplicates, 2500);
	assert_int_equal(kvsource_stats(w.s).restarts, 0);
	assert_int_equal(tiers(&w, 0, 0), GPU);
	/* too old to tell: if it is another publisher's, the lull's replay shows it */
	live_at(&w, 0, &other);
	w.now = w.o.wake_at;
	tell(&w, KVSOURCE_IN_TICK);
	assert_true(w.o.replay && w.o.replay_from == 2999);
	tell(&w, KVSOURCE_IN_REPLAY_END);
	assert_int_equal(kvsource_stats(w.s).restarts, 1);
	assert_int_equal(tiers(&w, 0, 0), 0);
	world_close(&w);
}

static void two_publishers_at_one_endpoint_demote(void **state)
{
	struct world w;
	struct ev a = stored(1, 1, -1, 0, BT), b = stored(2, 1, -1, 50, BT);
	unsigned replays = 0;
	(void)state;
	world_open(&w, true);
	begin(&w);
	for (unsigned i = 0; i < 100; i++) { /* each has its own batch 0 */
		live_at(&w, 0, i % 2 == 0 ? &a : &b);
		if (!w.o.replay)
			continue;
		replays++;
		replayed_at(&w, 0, i % 2 == 0 ? &a : &b);
		tell(&w, KVSOURCE_IN_REPLAY_END);
	}
	assert_int_equal(replays, 8);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_DEMOTED);
	assert_non_null(strstr(kvsource_why(w.s), "do two publish to this endpoint?"));
	assert_int_equal(holdings_count(w.h), 0);
	w.now = w.o.wake_at;
	tell(&w, KVSOURCE_IN_TICK);
	assert_true(w.o.replay);
	replayed_at(&w, 0, &a);
	tell(&w, KVSOURCE_IN_REPLAY_END);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
	assert_int_equal(tiers(&w, 0, 0), GPU);
	world_close(&w);
}

static void an_unparsable_batch_demotes_for_a_while(void **state)
{
	struct world w;
	struct ev a = stored(1, 1, -1, 0, BT), b = stored(2, 1, -1, 50, BT);
	(void)state;
	world_open(&w, true);
	begin(&w);
	live_at(&w, 0, &a);
	give(&w, KVSOURCE_IN_LIVE, 1,
		CGN_STR("\x92\x01\xa3"
			"bad"));
	assert_true(w.o.unparsable);
	assert_string_equal(w.o.head, "9201a3626164");
	assert_int_equal(kvsource_state(w.s), KVSOURCE_DEMOTED);
	assert_string_equal(kvsource_why(w.s),
		"unparsable event, batch 1: an array was expected, at byte 2 of 6");
	assert_int_equal(holdings_count(w.h), 0);
	live_at(&w, 2, &b);
	assert_int_equal(holdings_count(w.h), 0);
	w.now = w.o.wake_at;
	tell(&w, KVSOURCE_IN_TICK);
	assert_true(w.o.replay);
	assert_int_equal(w.o.replay_from, 2); /* behind it */
	replayed_at(&w, 2, &b);
	tell(&w, KVSOURCE_IN_REPLAY_END);
	assert_int_equal(kvsource_state(w.s), KVSOURCE_PARTIAL);
	assert_int_equal(holdings_count(w.h), 1);
	assert_int_equal(kvsource_stats(w.s).errors, 1);
	world_close(&w);
}

static void a_lull_is_looked_into(void **state)
{
	struct world w;
	struct ev a = stored(1, 1, -1, 0, BT), b = stored(2, 1, -1, 50, BT);
	(void)state;
	world_open(&w, true);
	begin(&w);
	live_at(&w, 0, &a);
	assert_true(w.o.wake_at == w.now + KVSOURCE_QUIET);
	w.now = w.o.wake_at;
	tell(&w, KVSOURCE_IN_TICK);
	assert_true(w.o.replay && w.o.replay_from == 0);
	replayed_at(&w, 0, &a);
	replayed_at(&w, 1, &b); /* it was lost */
	tell(&w, KVSOURCE_IN_REPLAY_END);
	assert_int_equal(holdings_count(w.h), 2);
	w.now = w.o.wake_at;
	tell(&w, KVSOURCE_IN_TICK);
	assert_true(w.o.replay && w.o.replay_from == 1);
	tell(&w, KVSOURCE_IN_REPLAY_FAILED); /* nothing is known to be missing */
	assert_int_equal(kvsource_state(w.s), KVSOURCE_GOOD);
	assert_int_equal(holdings_count(w.h), 2);
	assert_true(w.o.wake_at == w.now + KVSOURCE_IDLE); /* it looks again now and then */
	world_close(&w);
}

static void a_lost_connection_goes_stale(void **state)
{
	struct world w;
	struct ev a = stored(1, 1, -1, 0, BT);
	(void)state;
	world_open(&w, true);
	begin(&w);
	live_at(&w, 0, &a);
	tell(&w, KVSOURCE_IN_DISCONNECTED);
	assert_true(w.o.wake_at == w.now + KVSOURCE_STALE);
	assert_int_equal(holdings_count(w.h), 1);
	w.now = w.o.wake_at;
	tell(&w, KVSOURCE_IN_TICK);
	assert_int_equal(holdings_count(w.h), 0);
	begin(&w); /* asks from 0 */
	world_close(&w);
}

/* ---- against a naive model ---- */
#define P_PROMPTS 12
#define P_DEPTH   6
#define P_LOG     4000
#define P_BUFFER  600

struct publisher {
	struct cgn_buf log[P_LOG];
	uint64_t next;
	unsigned refs[P_PROMPTS][P_DEPTH][2]; /* by medium */
	bool calm;                            /* nothing goes wrong any more */
	uint64_t seed;                        /* of the engine's hashes, another one in each incarnation */
};

static uint64_t dice_state;
static unsigned dice(unsigned n)
{
	(void)mix_lcg(&dice_state);
	return (unsigned)((dice_state >> 33) % n);
}

static uint64_t hash_of(const struct publisher *p, unsigned prompt, unsigned depth)
{
	return p->seed + prompt * 100 + depth;
}

static void publish(struct publisher *p)
{
	struct ev v[3];
	uint32_t n = 0;
	assert_true(p->next < P_LOG);
	for (unsigned i = 0; i < 1 + dice(3); i++) {
		unsigned prompt = dice(P_PROMPTS), depth = dice(P_DEPTH), medium = dice(4) == 0;
		if (dice(400) == 0) {
			memset(p->refs, 0, sizeof p->refs);
			v[n++] = (struct ev){.type = 'C'};
		} else if (p->refs[prompt][depth][medium] > 0 && dice(2) == 0) {
			p->refs[prompt][depth][medium]--;
			v[n++] = removed(hash_of(p, prompt, depth), medium ? "CPU" : "GPU");
		} else { /* as engines do: the parent is there when a block is stored */
			bool parent = depth == 0 ||
				p->refs[prompt][depth - 1][0] + p->refs[prompt][depth - 1][1] > 0;
			if (!parent)
				continue;
			p->refs[prompt][depth][medium]++;
			v[n] = stored(hash_of(p, prompt, depth), 1,
				depth == 0 ? -1 : (int64_t)hash_of(p, prompt, depth - 1),
				prompt * 1000 + depth * BT, BT);
			v[n++].medium = medium ? "CPU" : NULL;
		}
	}
	put_batch(&p->log[p->next], (double)dice_state, v, n);
	p->next++;
}

static void restart(struct publisher *p)
{
	for (uint64_t i = 0; i < p->next; i++)
		cgn_buf_fini(&p->log[i]);
	p->next = 0;
	p->seed += 1000000;
	memset(p->refs, 0, sizeof p->refs);
}

/* How many blocks the holdings have wrong; missing ones count only when |exact|. */
static unsigned wrong(const struct world *w, const struct publisher *p, bool exact)
{
	unsigned n = 0, known = 0;
	for (unsigned prompt = 0; prompt < P_PROMPTS; prompt++)
		for (unsigned depth = 0; depth < P_DEPTH; depth++) {
			unsigned is = tiers(w, prompt * 1000, depth);
			unsigned due = (p->refs[prompt][depth][0] > 0 ? GPU : 0) |
				(p->refs[prompt][depth][1] > 0 ? RAM : 0);
			n += exact ? is != due : (is & ~due) != 0;
			known += is != 0;
		}
	return n + (known != holdings_count(w->h)); /* and nothing else is there */
}

/* Carry out a replay that was ordered; batches may be published meanwhile, and it may break off. */
static void carry_out(struct world *w, struct publisher *p)
{
	while (w->o.replay) {
		uint64_t from = w->o.replay_from, oldest = p->next > P_BUFFER ? p->next - P_BUFFER : 0,
			 end = p->next;
		bool again = false;
		if (!p->calm && dice(40) == 0) {
			tell(w, KVSOURCE_IN_REPLAY_FAILED);
			continue;
		}
		for (uint64_t i = from > oldest ? from : oldest; i < end && !again; i++) {
			give(w, KVSOURCE_IN_REPLAYED, i, cgn_buf_view(&p->log[i]));
			again = w->o.replay;
			if (!again && !p->calm && dice(30) == 0 && p->next < P_LOG) {
				publish(p);
				if (dice(3) != 0)
					give(w, KVSOURCE_IN_LIVE, p->next - 1,
						cgn_buf_view(&p->log[p->next - 1]));
				again = w->o.replay;
			}
		}
		if (!again)
			tell(w, KVSOURCE_IN_REPLAY_END);
	}
}

static void some_time_passes(struct world *w, struct publisher *p)
{
	w->now += 40 * CGN_SEC;
	if (w->o.wake_at != 0 && w->now >= w->o.wake_at) {
		tell(w, KVSOURCE_IN_TICK);
		carry_out(w, p);
	}
}

static void reconnect(struct world *w, struct publisher *p)
{
	tell(w, KVSOURCE_IN_DISCONNECTED);
	if (dice(3) == 0)
		some_time_passes(w, p);
	tell(w, KVSOURCE_IN_CONNECTED);
	carry_out(w, p);
}

static void one_turn(struct world *w, struct publisher *p)
{
	publish(p);
	uint64_t last = p->next - 1;
	unsigned fate = dice(100);
	if (fate < 8) /* lost */
		return;
	if (fate < 12 && p->next > 3) { /* late: a few come before it */
		publish(p);
		give(w, KVSOURCE_IN_LIVE, last + 1, cgn_buf_view(&p->log[last + 1]));
		carry_out(w, p);
	}
	give(w, KVSOURCE_IN_LIVE, last, cgn_buf_view(&p->log[last]));
	carry_out(w, p);
	if (fate >= 90) /* twice */
		give(w, KVSOURCE_IN_LIVE, last, cgn_buf_view(&p->log[last]));
	carry_out(w, p);
}

static struct kvsource_stats sums; /* of what happened */
static unsigned n_good;

static void note(const struct kvsource_stats *st, enum kvsource_state state)
{
	sums.duplicates += st->duplicates;
	sums.gaps += st->gaps;
	sums.restarts += st->restarts;
	sums.replay_failures += st->replay_failures;
	sums.blocks += st->blocks;
	n_good += state == KVSOURCE_GOOD;
}

static void run_seed(uint64_t seed, bool can_replay)
{
	static struct publisher p;
	struct world w;
	dice_state = seed * 7919 + 1;
	world_open(&w, can_replay);
	p.seed = 1000000;
	for (unsigned i = 0; i < dice(50); i++)
		publish(&p);
	tell(&w, KVSOURCE_IN_CONNECTED);
	carry_out(&w, &p);
	for (unsigned turn = 0; turn < 400; turn++) {
		one_turn(&w, &p);
		if (dice(80) == 0)
			some_time_passes(&w, &p);
		if (dice(100) == 0)
			restart(&p);
		else if (dice(60) != 0)
			continue;
		reconnect(&w, &p);
	}
	/* Where there are no replays, one more batch has to come through to tell that some were lost. */
	p.calm = true;
	some_time_passes(&w, &p);
	if (!can_replay) {
		publish(&p);
		give(&w, KVSOURCE_IN_LIVE, p.next - 1, cgn_buf_view(&p.log[p.next - 1]));
	}
	for (unsigned i = 0; i < 10 && (w.o.replay || w.o.wake_at != 0); i++) {
		carry_out(&w, &p);
		some_time_passes(&w, &p);
	}
	enum kvsource_state state = kvsource_state(w.s);
	assert_true(state == KVSOURCE_GOOD || state == KVSOURCE_PARTIAL);
	if (can_replay && p.next < P_BUFFER && state != KVSOURCE_GOOD)
		fail_msg("seed %llu: %s, %s", (unsigned long long)seed, kvsource_state_name(state),
			kvsource_why(w.s));
	if (wrong(&w, &p, state == KVSOURCE_GOOD) != 0)
		fail_msg("seed %llu (%s): %u blocks are wrong", (unsigned long long)seed,
			kvsource_state_name(state), wrong(&w, &p, state == KVSOURCE_GOOD));
	struct kvsource_stats st = kvsource_stats(w.s);
	assert_int_equal(st.errors, 0);
	note(&st, state);
	world_close(&w);
	restart(&p);
	p.calm = false;
}

static void it_ends_exact_whatever_happened(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 300; seed++)
		run_seed(seed, seed % 5 != 0);
	assert_true(sums.duplicates > 1000 && sums.gaps > 1000 && sums.restarts > 100 &&
		sums.replay_failures > 100 && sums.blocks > 1000);
	assert_in_range(n_good, 200, 300);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_come_and_go),
		cmocka_unit_test(media_count_apart),
		cmocka_unit_test(large_blocks_are_several_of_ours),
		cmocka_unit_test(a_block_size_that_does_not_fit_demotes),
		cmocka_unit_test(pages_make_a_block_together),
		cmocka_unit_test(pages_whose_beginning_is_not_known_make_nothing),
		cmocka_unit_test(pages_of_two_roots_make_no_block),
		cmocka_unit_test(a_parent_that_became_a_page_makes_no_block),
		cmocka_unit_test(pages_of_pictures_are_not_followed),
		cmocka_unit_test(loras_salts_and_images_have_chains_of_their_own),
		cmocka_unit_test(a_block_needs_every_full_group),
		cmocka_unit_test(orphans_are_not_guessed),
		cmocka_unit_test(too_many_blocks_demote),
		cmocka_unit_test(a_gap_is_replayed),
		cmocka_unit_test(what_was_before_is_learnt),
		cmocka_unit_test(a_restart_forgets),
		cmocka_unit_test(without_replay_a_gap_forgets),
		cmocka_unit_test(a_failed_replay_rests),
		cmocka_unit_test(a_replay_that_brings_nothing_fails),
		cmocka_unit_test(what_a_replay_overtook_is_no_restart),
		cmocka_unit_test(two_publishers_at_one_endpoint_demote),
		cmocka_unit_test(an_unparsable_batch_demotes_for_a_while),
		cmocka_unit_test(a_lull_is_looked_into),
		cmocka_unit_test(a_lost_connection_goes_stale),
		cmocka_unit_test(it_ends_exact_whatever_happened),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
