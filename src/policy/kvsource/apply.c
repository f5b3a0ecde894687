/* SPDX-License-Identifier: Apache-2.0 */
/* Events onto the ledger: which of our blocks an engine's block is. */
#include <stdlib.h>

#include "kvsource_priv.h"

static void give_up(struct kv_source *s, cgn_rc rc, const char *why)
{
	s->trouble = rc;
	(void)cgn_str_copyz(s->trouble_why, sizeof s->trouble_why, cgn_str_of(why));
}

/* Why the ledger would not take more. */
static void give_up_on_ledger(struct kv_source *s, cgn_rc rc)
{
	char why[200];
	(void)snprintf(why, sizeof why, "it has more than the %zu blocks that are kept of a source or of the node", s->cfg.max_blocks);
	give_up(s, rc, rc.code == CGN_NO_MEMORY ? "no memory for its blocks" : why);
}

/* ---- digests ---- */

/* The tokens of one block of ours, and what else belongs to it. */
static bool fill_scratch(struct kv_source *s, struct kv_list *tokens, struct cgn_str foreign)
{
	size_t n = (size_t)s->cfg.block_tokens * sizeof(uint32_t);
	uint32_t t = 0;
	s->scratch.n = 0;
	char *to = cgn_buf_room(&s->scratch, n);
	for (size_t i = 0; to != NULL && i < n && kv_token_next(tokens, &t); i += 4)
		for (unsigned k = 0; k < 4; k++)
			to[i + k] = (char)(uint8_t)(t >> (8 * k));
	if (to != NULL)
		cgn_buf_grew(&s->scratch, n);
	cgn_buf_str(&s->scratch, foreign);
	if (s->scratch.bad)
		give_up(s, CGN_RC_OF(CGN_NO_MEMORY), "no memory for a block's tokens");
	return !s->scratch.bad;
}

static bool digest_block(struct kv_source *s, struct kv_list *tokens, uint32_t split, const struct digest *parent, struct cgn_str foreign)
{
	for (uint32_t i = 0; i < split; i++) {
		if (!fill_scratch(s, tokens, foreign))
			return false;
		s->digests[i] = digest_chain_next(i > 0 ? &s->digests[i - 1] : parent, cgn_buf_view(&s->scratch));
	}
	return true;
}

static struct digest root_of(const struct kv_source *s, const struct kv_event *e, struct cgn_str salt)
{
	char number[32];
	struct cgn_str lora = e->lora, model = cgn_str_of(s->model);
	if (lora.n == 0 && e->lora_id != 0) {
		(void)snprintf(number, sizeof number, "#%llu", (unsigned long long)e->lora_id);
		return digest_chain_root(model, cgn_str_of(number), salt);
	}
	return lora.n > 0 && s->cfg.lora_is_model ? digest_chain_root(lora, (struct cgn_str){0}, salt) : digest_chain_root(model, lora, salt);
}

static void skip_tokens(struct kv_list *tokens, uint32_t n)
{
	uint32_t t;
	while (n-- > 0 && kv_token_next(tokens, &t))
		continue;
}

/* ---- stored ---- */

/* The chain as it is followed through an event: the digest before the next block, when it is known. */
struct walk {
	const struct kv_event *e;
	unsigned shape;
	uint32_t split;
	struct kv_list tokens;
	struct msgpack_in entries;
	bool known, first; /* |last| is the parent of the next block; that block has no parent */
	struct digest last;
};

static void orphan(struct kv_source *s, const struct kv_event *e)
{
	s->stats.orphans++;
	if (e->tier == KV_GPU) /* lower tiers may be told of after the block itself has gone */
		s->complete = false;
}

static void store_known(struct kv_source *s, struct walk *w, struct ledger_block *b)
{
	w->last = b->last;
	w->known = true;
	skip_tokens(&w->tokens, w->e->block_size);
	cgn_rc rc = ledger_ref(&s->ledger, b, w->e->tier);
	if (!cgn_ok(rc))
		give_up_on_ledger(s, rc);
}

static void store_new(struct kv_source *s, struct walk *w, uint64_t hash, const struct kv_extra *x)
{
	if (w->first)
		w->last = root_of(s, w->e, x->salt.n > 0 ? x->salt : w->e->salt);
	if (!digest_block(s, &w->tokens, w->split, &w->last, x->foreign))
		return;
	w->last = s->digests[w->split - 1];
	cgn_rc rc = ledger_add(&s->ledger, w->e->group, w->shape, hash, s->digests, w->e->tier);
	if (!cgn_ok(rc))
		give_up_on_ledger(s, rc);
}

static void store_one(struct kv_source *s, struct walk *w, uint64_t hash)
{
	struct kv_extra x = {0};
	struct ledger_block *b = ledger_find(&s->ledger, w->e->group, w->shape, hash);
	if (w->e->extra_keys.n > 0)
		kv_extra_next(&w->entries, w->e->lora, w->first, &x);
	if (b != NULL) {
		store_known(s, w, b);
	} else if (w->known) {
		store_new(s, w, hash, &x);
	} else {
		orphan(s, w->e);
		skip_tokens(&w->tokens, w->e->block_size);
	}
	w->first = false;
}

static void begin_walk(struct kv_source *s, const struct kv_event *e, struct walk *w)
{
	*w = (struct walk){.e = e, .split = e->block_size / s->cfg.block_tokens, .tokens = e->tokens, .first = !e->has_parent, .known = !e->has_parent};
	if (e->extra_keys.n > 0) {
		w->entries = msgpack_in_of(e->extra_keys);
		(void)msgpack_get_array(&w->entries);
	}
	const struct ledger_block *parent = e->has_parent ? ledger_find_any(&s->ledger, e->group, e->parent) : NULL;
	if (parent != NULL) {
		w->last = parent->last;
		w->known = true;
	}
}

/* Without tokens an event tells where blocks lie that were told of before. */
static void store_by_name(struct kv_source *s, const struct kv_event *e)
{
	struct kv_list hashes = e->hashes;
	uint64_t hash;
	while (cgn_ok(s->trouble) && kv_hash_next(&hashes, &hash)) {
		struct ledger_block *b = ledger_find_any(&s->ledger, e->group, hash);
		cgn_rc rc = b != NULL ? ledger_ref(&s->ledger, b, e->tier) : CGN_OK;
		if (b == NULL)
			orphan(s, e);
		if (!cgn_ok(rc))
			give_up_on_ledger(s, rc);
	}
}

static bool size_fits(struct kv_source *s, uint32_t block_size)
{
	char why[200];
	uint32_t split = block_size / s->cfg.block_tokens;
	if (block_size % s->cfg.block_tokens == 0 && split >= 1 && split <= LEDGER_MAX_SPLIT)
		return true;
	(void)snprintf(why, sizeof why,
		"its blocks have %u tokens, which is not a multiple of the model's block_tokens = %u: set block_tokens to a divisor of it, or the engine's block (page) size to a multiple",
		block_size, s->cfg.block_tokens);
	give_up(s, CGN_RC_OF(CGN_UNSUPPORTED), why);
	return false;
}

static void on_stored(struct kv_source *s, const struct kv_event *e)
{
	struct walk w;
	uint64_t hash;
	struct kv_list hashes = e->hashes;
	s->stats.stored += e->hashes.n;
	if (!cgn_ok(ledger_see_group(&s->ledger, e->group, e->windowed))) {
		give_up(s, CGN_RC_OF(CGN_NO_MEMORY), "no memory for its blocks");
		return;
	}
	if (e->tokens.n == 0) {
		store_by_name(s, e);
		return;
	}
	if (!size_fits(s, e->block_size))
		return;
	begin_walk(s, e, &w);
	if (!cgn_ok(ledger_shape(&s->ledger, w.split, &w.shape))) {
		give_up(s, CGN_RC_OF(CGN_UNSUPPORTED), "it has blocks of more than 8 sizes");
		return;
	}
	while (cgn_ok(s->trouble) && kv_hash_next(&hashes, &hash))
		store_one(s, &w, hash);
}

/* ---- removed, cleared ---- */

/* The event does not tell the block's size: the first shape that has it there. */
static bool remove_one(struct kv_source *s, const struct kv_event *e, uint64_t hash)
{
	for (unsigned shape = 0; shape < s->ledger.n_shapes; shape++) {
		struct ledger_block *b = ledger_find(&s->ledger, e->group, shape, hash);
		if (b != NULL && b->refs[e->tier] > 0) {
			ledger_unref(&s->ledger, b, e->tier);
			return true;
		}
	}
	return false;
}

static void on_removed(struct kv_source *s, const struct kv_event *e)
{
	struct kv_list hashes = e->hashes;
	uint64_t hash;
	s->stats.removed += e->hashes.n;
	while (kv_hash_next(&hashes, &hash))
		s->stats.unknown_removed += !remove_one(s, e, hash);
}

static void on_cleared(struct kv_source *s)
{
	s->stats.cleared++;
	ledger_clear(&s->ledger);
	s->complete = true; /* whatever we had missed is gone as well */
}

static void on_event(void *user, const struct kv_event *e)
{
	struct kv_source *s = user;
	if (!cgn_ok(s->trouble))
		return;
	if (e->type == KV_CLEARED) {
		on_cleared(s);
		return;
	}
	if (e->type == KV_STORED)
		on_stored(s, e);
	else
		on_removed(s, e);
}

CGN_RC source_apply(struct kv_source *s, struct cgn_str payload, struct cgn_err *why)
{
	struct kv_batch b;
	s->trouble = CGN_OK;
	CGN_TRY(kv_batch_read(payload, on_event, s, &b, why));
	s->stats.batches++;
	s->stats.unknown_events += b.unknown_events;
	s->stats.unknown_fields += b.unknown_fields;
	if (b.dp_rank >= 0)
		s->stats.dp_rank = b.dp_rank;
	if (!cgn_ok(s->trouble))
		return CGN_FAIL_AS(why, s->trouble.code, "%s", s->trouble_why);
	return CGN_OK;
}
