/* SPDX-License-Identifier: Apache-2.0 */
/* Apply events to the ledger: map each engine's block to our blocks. */
#include <stdlib.h>

#include "kvsource_priv.h"

#define MAX_FOREIGN 1024 /* Bytes of extra keys per block of ours. */

static void give_up(struct kvsource *s, cgn_rc rc, const char *why)
{
	s->trouble = rc;
	(void)cgn_str_copyz(s->trouble_why, sizeof s->trouble_why, cgn_str_of(why));
}

/* Demote the source for good and record why the ledger refused more. */
static void give_up_on_ledger(struct kvsource *s, cgn_rc rc)
{
	char why[200];
	(void)snprintf(why, sizeof why,
		"it has more than the %zu blocks that are kept of a source or of the node",
		s->cfg.max_blocks);
	give_up(s, rc, rc.code == CGN_NO_MEMORY ? "no memory for its blocks" : why);
}

/* ---- digests ---- */

static void put_token(char *to, uint32_t t)
{
	for (unsigned k = 0; k < 4; k++)
		to[k] = (char)(uint8_t)(t >> (8 * k));
}

/* Collect the tokens and extra keys of one block of ours in the scratch buffer. */
static bool fill_scratch(struct kvsource *s, struct kvevent_list *tokens, struct cgn_str foreign)
{
	size_t n = (size_t)s->cfg.block_tokens * sizeof(uint32_t);
	uint32_t t = 0;
	s->scratch.n = 0;
	char *to = cgn_buf_room(&s->scratch, n);
	for (size_t i = 0; to != NULL && i < n && kvevent_token_next(tokens, &t); i += 4)
		put_token(to + i, t);
	if (to != NULL)
		cgn_buf_grew(&s->scratch, n);
	cgn_buf_str(&s->scratch, foreign);
	if (s->scratch.bad)
		give_up(s, CGN_RC_OF(CGN_NO_MEMORY), "no memory for a block's tokens");
	return !s->scratch.bad;
}

static bool digest_block(struct kvsource *s, struct kvevent_list *tokens, uint32_t split,
	const struct digest *parent, struct cgn_str foreign)
{
	for (uint32_t i = 0; i < split; i++) {
		if (!fill_scratch(s, tokens, foreign))
			return false;
		s->digests[i] =
			digest_chain_next(i > 0 ? &s->digests[i - 1] : parent, cgn_buf_view(&s->scratch));
	}
	return true;
}

static struct digest root_of(const struct kvsource *s, const struct kvevent *e, struct cgn_str salt)
{
	char number[32];
	struct cgn_str lora = e->lora, model = cgn_str_of(s->model);
	if (lora.n == 0 && e->lora_id != 0) {
		(void)snprintf(number, sizeof number, "#%llu", (unsigned long long)e->lora_id);
		return digest_chain_root(model, cgn_str_of(number), salt);
	}
	return lora.n > 0 && s->cfg.lora_is_model ? digest_chain_root(lora, (struct cgn_str){0}, salt)
						  : digest_chain_root(model, lora, salt);
}

static void skip_tokens(struct kvevent_list *tokens, uint32_t n)
{
	uint32_t t;
	while (n-- > 0 && kvevent_token_next(tokens, &t))
		continue;
}

/* ---- stored ---- */

/* Position in the chain of one event: the digest before the next block, when it is known. */
struct walk {
	const struct kvevent *e;
	unsigned shape;
	uint32_t split;
	struct kvevent_list tokens;
	struct msgpack_in entries;
	/* known: |last| is the parent of the next block. first: the next block has no parent. */
	bool known, first;
	struct digest last;
	/* pages: ledger_pages of the shape. place: position of the next page in its block of ours. */
	uint32_t pages, place;
	uint64_t before; /* Hash of the previous page. */
	/* |root| is valid. It is computed once for all pages, since a salt may be long. */
	bool rooted;
	struct digest root;
};

static void orphan_count(struct kvsource *s, const struct kvevent *e)
{
	s->stats.orphans++;
	if (e->tier == BLOCK_GPU) /* Lower tiers may report a block after the block itself has gone. */
		s->complete = false;
}

static void store_known(struct kvsource *s, struct walk *w, struct ledger_block *b)
{
	if (w->pages > 0)
		w->place = (b->place + 1U) % w->pages;
	else
		w->last = b->last;
	w->known = true;
	skip_tokens(&w->tokens, w->e->block_size);
	cgn_rc rc = ledger_ref(&s->ledger, b, w->e->tier);
	if (!cgn_ok(rc))
		give_up_on_ledger(s, rc);
}

static void store_new(struct kvsource *s, struct walk *w, uint64_t hash, const struct kvevent_extra *x)
{
	if (w->first)
		w->last = root_of(s, w->e, x->salt.n > 0 ? x->salt : w->e->salt);
	struct cgn_str foreign = x->foreign;
	struct digest print;
	if (foreign.n > MAX_FOREIGN) {
		print = digest_of(foreign);
		foreign = (struct cgn_str){(const char *)&print, sizeof print};
	}
	if (!digest_block(s, &w->tokens, w->split, &w->last, foreign))
		return;
	w->last = s->digests[w->split - 1];
	cgn_rc rc = ledger_add(&s->ledger, w->e->group, w->shape, hash, s->digests, w->e->tier);
	if (!cgn_ok(rc))
		give_up_on_ledger(s, rc);
}

static const struct digest *root_of_pages(const struct kvsource *s, struct walk *w)
{
	if (!w->rooted)
		w->root = root_of(s, w->e, w->e->salt);
	w->rooted = true;
	return &w->root;
}

static bool ends_block(const struct ledger *l, const struct ledger_block *b)
{
	uint32_t pages = ledger_pages(l, b->shape);
	return pages == 0 || b->place + 1U == pages;
}

/* Collect the part of our block before the next page: the tokens of the pages before it into |to|, and the
 * parent digest. Return false when one of the pages is not known any more or belongs to another root. */
static bool pages_before(const struct kvsource *s, struct walk *w, char *to, struct digest *last)
{
	uint64_t hash = w->before;
	const struct ledger_block *b = NULL;
	for (uint32_t place = w->place; place-- > 0; hash = b->parent) {
		b = ledger_find(&s->ledger, w->e->group, w->shape, hash);
		if (b == NULL || b->place != place)
			return false;
		for (uint32_t i = 0; i < w->e->block_size; i++)
			put_token(to + 4 * ((size_t)place * w->e->block_size + i), b->tokens[i]);
	}
	if (b != NULL && b->first) {
		*last = *root_of_pages(s, w);
		return b->parent == digest_short(last);
	}
	b = ledger_find_any(&s->ledger, w->e->group, hash);
	if (b == NULL || !ends_block(&s->ledger, b)) /* The hash may name another block by now. */
		return false;
	*last = b->last;
	return true;
}

/* Compute the digest of the block of ours that the current page ends. */
static bool end_block(struct kvsource *s, struct walk *w, struct digest *out)
{
	size_t n = (size_t)s->cfg.block_tokens * sizeof(uint32_t),
	       own = (size_t)w->e->block_size * sizeof(uint32_t);
	uint32_t t = 0;
	s->scratch.n = 0;
	char *to = cgn_buf_room(&s->scratch, n);
	if (to == NULL) {
		give_up(s, CGN_RC_OF(CGN_NO_MEMORY), "no memory for a block's tokens");
		return false;
	}
	for (size_t i = n - own; i < n && kvevent_token_next(&w->tokens, &t); i += 4)
		put_token(to + i, t);
	struct digest last;
	if (!pages_before(s, w, to, &last))
		return false;
	*out = digest_chain_next(&last, (struct cgn_str){to, n});
	return true;
}

/* Pages with images are not followed, nor vLLM's pages with a salt, because only the first page carries
 * it. */
static void store_page(struct kvsource *s, struct walk *w, uint64_t hash, const struct kvevent_extra *x)
{
	struct ledger_block page = {.hash = hash,
		.group = (uint8_t)w->e->group,
		.shape = (uint8_t)w->shape,
		.place = (uint8_t)w->place,
		.first = w->first,
		.parent = w->first ? digest_short(root_of_pages(s, w)) : w->before};
	if (w->place + 1 == w->pages)
		w->known = end_block(s, w, &page.last);
	else
		for (uint32_t i = 0; i < w->e->block_size; i++)
			(void)kvevent_token_next(&w->tokens, &page.tokens[i]);
	w->known = w->known && x->foreign.n == 0 && x->salt.n == 0;
	if (!w->known) {
		orphan_count(s, w->e);
		return;
	}
	cgn_rc rc = ledger_add_page(&s->ledger, &page, w->e->tier);
	if (!cgn_ok(rc))
		give_up_on_ledger(s, rc);
	w->place = (w->place + 1) % w->pages;
}

static void store_one(struct kvsource *s, struct walk *w, uint64_t hash)
{
	struct kvevent_extra x = {0};
	struct ledger_block *b = ledger_find(&s->ledger, w->e->group, w->shape, hash);
	if (w->e->extra_keys.n > 0)
		kvevent_extra_next(&w->entries, w->e->lora, w->first, &x);
	if (b != NULL) {
		store_known(s, w, b);
	} else if (w->known && w->pages > 0) {
		store_page(s, w, hash, &x);
	} else if (w->known) {
		store_new(s, w, hash, &x);
	} else {
		orphan_count(s, w->e);
		skip_tokens(&w->tokens, w->e->block_size);
	}
	w->first = false;
	w->before = hash;
}

static void begin_walk(struct kvsource *s, const struct kvevent *e, unsigned shape, struct walk *w)
{
	*w = (struct walk){.e = e,
		.shape = shape,
		.split = s->ledger.shapes[shape],
		.pages = ledger_pages(&s->ledger, shape),
		.tokens = e->tokens,
		.first = !e->has_parent,
		.known = !e->has_parent,
		.before = e->parent};
	if (e->extra_keys.n > 0) {
		w->entries = msgpack_in_of(e->extra_keys);
		(void)msgpack_get_array(&w->entries);
	}
	const struct ledger_block *parent =
		e->has_parent ? ledger_find_any(&s->ledger, e->group, e->parent) : NULL;
	if (parent == NULL)
		return;
	w->known = ends_block(&s->ledger, parent);
	if (w->known)
		w->last = parent->last;
	else if (parent->shape == shape) {
		w->known = true;
		w->place = parent->place + 1U;
	}
}

/* An event without tokens places blocks that an earlier event described. */
static void store_by_name(struct kvsource *s, const struct kvevent *e)
{
	struct kvevent_list hashes = e->hashes;
	uint64_t hash;
	while (cgn_ok(s->trouble) && kvevent_hash_next(&hashes, &hash)) {
		struct ledger_block *b = ledger_find_any(&s->ledger, e->group, hash);
		cgn_rc rc = b != NULL ? ledger_ref(&s->ledger, b, e->tier) : CGN_OK;
		if (b == NULL)
			orphan_count(s, e);
		if (!cgn_ok(rc))
			give_up_on_ledger(s, rc);
	}
}

/* Return the shape for blocks of |block_size| tokens; 0: such blocks can't be followed. */
static uint32_t size_kind(const struct kvsource *s, uint32_t block_size)
{
	uint32_t ours = s->cfg.block_tokens;
	if (block_size == 0)
		return 0;
	if (block_size % ours == 0 && block_size / ours <= LEDGER_MAX_SPLIT)
		return block_size / ours;
	if (ours % block_size == 0 && block_size <= LEDGER_MAX_PAGE && ours / block_size <= UINT8_MAX)
		return LEDGER_PAGES | ours / block_size;
	return 0;
}

/* Return the shape for blocks of |block_size| tokens. Return 0, and demote the source, when such blocks can't
 * be followed. */
static uint32_t kind_of(struct kvsource *s, uint32_t block_size)
{
	char why[240];
	uint32_t kind = size_kind(s, block_size);
	if (kind != 0)
		return kind;
	(void)snprintf(why, sizeof why,
		"its blocks have %u tokens, which does not go with the model's block_tokens = %u: set block_tokens to a divisor of it, or the engine's block (page) size to a multiple",
		block_size, s->cfg.block_tokens);
	give_up(s, CGN_RC_OF(CGN_UNSUPPORTED), why);
	return 0;
}

/* A windowed group of a hybrid model says nothing about the prefix, and nothing about it may end the knowledge of
 * the groups that do: not a size of blocks that can't be followed, and not tokens without their hashes. */
static bool is_left_out(const struct kvsource *s, const struct kvevent *e)
{
	return !ledger_requires(&s->ledger, e->group) ||
		(e->tokens.n > 0 &&
			(!kvevent_tokens_fit(e) || (e->windowed && size_kind(s, e->block_size) == 0)));
}

static void on_stored(struct kvsource *s, const struct kvevent *e)
{
	struct walk w;
	uint64_t hash;
	struct kvevent_list hashes = e->hashes;
	s->stats.stored += e->hashes.n;
	if (!cgn_ok(ledger_see_group(&s->ledger, e->group, e->windowed))) {
		give_up(s, CGN_RC_OF(CGN_NO_MEMORY), "no memory for its blocks");
		return;
	}
	if (is_left_out(s, e))
		return;
	if (e->tokens.n == 0) {
		store_by_name(s, e);
		return;
	}
	unsigned shape;
	uint32_t kind = kind_of(s, e->block_size);
	if (kind == 0)
		return;
	if (!cgn_ok(ledger_shape(&s->ledger, kind, &shape))) {
		give_up(s, CGN_RC_OF(CGN_UNSUPPORTED), "it has blocks of more than 8 sizes");
		return;
	}
	begin_walk(s, e, shape, &w);
	while (cgn_ok(s->trouble) && kvevent_hash_next(&hashes, &hash))
		store_one(s, &w, hash);
}

/* ---- removed, cleared ---- */

/* The event does not carry the block's size: take the first shape that has the hash in this tier. */
static bool remove_one(struct kvsource *s, const struct kvevent *e, uint64_t hash)
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

static void on_removed(struct kvsource *s, const struct kvevent *e)
{
	struct kvevent_list hashes = e->hashes;
	uint64_t hash;
	s->stats.removed += e->hashes.n;
	while (kvevent_hash_next(&hashes, &hash))
		s->stats.unknown_removed += !remove_one(s, e, hash) && ledger_requires(&s->ledger, e->group);
}

static void on_cleared(struct kvsource *s)
{
	s->stats.cleared++;
	ledger_clear(&s->ledger);
	s->complete = true; /* All blocks that were missed are gone as well. */
}

static void on_event(void *user, const struct kvevent *e)
{
	struct kvsource *s = user;
	if (!cgn_ok(s->trouble))
		return;
	if (e->type == KVEVENT_CLEARED) {
		on_cleared(s);
		return;
	}
	if (e->type == KVEVENT_STORED)
		on_stored(s, e);
	else
		on_removed(s, e);
}

CGN_RC kvsource_apply(struct kvsource *s, struct cgn_str payload, struct cgn_err *why)
{
	struct kvevent_batch b;
	s->trouble = CGN_OK;
	CGN_TRY(kvevent_batch_read(payload, on_event, s, &b, why));
	s->stats.batches++;
	s->stats.unknown_events += b.unknown_events;
	s->stats.unknown_fields += b.unknown_fields;
	if (b.dp_rank >= 0)
		s->stats.dp_rank = b.dp_rank;
	if (!cgn_ok(s->trouble))
		return CGN_FAIL_AS(why, s->trouble.code, "%s", s->trouble_why);
	return CGN_OK;
}
