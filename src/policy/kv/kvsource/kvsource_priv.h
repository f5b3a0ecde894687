/* SPDX-License-Identifier: Apache-2.0 */
/* kvsource, inside: the ledger of blocks, the batches held back, and the source that uses both. */
#pragma once
#include "base/core/buf.h"
#include "base/digest/digest.h"
#include "base/table/table.h"
#include "policy/kv/kvevent/kvevent.h"
#include "policy/kv/kvsource/kvsource.h"

/* ---- ledger.c: (group, shape, engine's hash) -> our digests and references; digest -> references ---- */
#define LEDGER_MAX_SHAPES 8
#define LEDGER_MAX_SPLIT  1024 /* Blocks of ours in one of the engine's. */
/* Flag of a shape whose blocks are pages; the other bits count the pages in one block of ours. */
#define LEDGER_PAGES    0x80000000U
#define LEDGER_MAX_PAGE 8 /* Tokens of a page. */

struct ledger_block {
	uint64_t hash;
	union {
		struct digest last;               /* The last of its blocks of ours. */
		uint32_t tokens[LEDGER_MAX_PAGE]; /* Tokens of a page that does not end a block of ours. */
	};
	union {
		/* Short digests of the blocks before the last; NULL when there is only one. */
		uint64_t *earlier;
		/* For a page: the hash of the previous page; for the first page of a prompt: the short digest
		 * of its root. */
		uint64_t parent;
	};
	uint16_t refs[BLOCK_TIERS]; /* Not all 0. A count that reached 65,535 stays. */
	uint8_t group, shape;
	uint8_t place; /* Position of a page in its block of ours. */
	bool first;    /* A page without a parent. */
};

/* References of the cache groups to one of our blocks. */
struct ledger_spot {
	uint64_t digest;
	uint8_t told;    /* Tiers that the holdings have from this source. */
	uint16_t refs[]; /* [groups][BLOCK_TIERS]: references to the block; 65,535 stays. */
};

struct ledger {
	struct holdings *holdings;
	size_t max_blocks;
	struct ledger_block *blocks;
	size_t n_blocks, cap_blocks;
	struct table block_of, spot_of; /* Indices of |blocks| and |spots|. */
	char *spots;
	size_t n_spots, cap_spots, spot_bytes;
	unsigned groups_cap; /* Rows of refs in a spot. */
	/* Masks of groups: seen; of full attention; required for a block to be held. */
	uint32_t groups, full, required;
	/* Blocks of ours in one of the engine's, or LEDGER_PAGES and the pages in one of ours. */
	uint32_t shapes[LEDGER_MAX_SHAPES];
	unsigned n_shapes;
};
void ledger_init(struct ledger *l, struct holdings *h, size_t max_blocks);
/* Remove everything from the holdings, free the memory and forget the groups. */
void ledger_clear(struct ledger *l);
CGN_RC ledger_see_group(struct ledger *l, unsigned group, bool windowed);
/* Return true when a block is held only where |group| has it: a group of full attention, or any group of an engine
 * that has none. */
static inline bool ledger_requires(const struct ledger *l, unsigned group)
{
	return (l->required & 1U << group) != 0;
}
/* Fails with TOO_LARGE when there are too many shapes. */
CGN_RC ledger_shape(struct ledger *l, uint32_t kind, unsigned *out);
/* Return how many pages make a block of ours; 0 when the shape has no pages. */
static inline uint32_t ledger_pages(const struct ledger *l, unsigned shape)
{
	return (l->shapes[shape] & LEDGER_PAGES) != 0 ? l->shapes[shape] & ~LEDGER_PAGES : 0;
}
/* Return NULL when there is none. */
struct ledger_block *ledger_find(const struct ledger *l, unsigned group, unsigned shape, uint64_t hash);
/* The same in any shape. */
struct ledger_block *ledger_find_any(const struct ledger *l, unsigned group, uint64_t hash);
/* Add a block with one reference in |tier|. |digests|: as many as the shape splits the block into. Fails with
 * TOO_LARGE and NO_MEMORY; nothing changed then. */
CGN_RC ledger_add(struct ledger *l, unsigned group, unsigned shape, uint64_t hash,
	const struct digest *digests, enum block_tier tier);
/* Add a page. |page| has hash, group, shape, place, first and parent, and either its tokens or, when it ends
 * a block of ours, |last|. */
CGN_RC ledger_add_page(struct ledger *l, const struct ledger_block *page, enum block_tier tier);
CGN_RC ledger_ref(struct ledger *l, struct ledger_block *b, enum block_tier tier);
/* Drop one reference, if there is one; |b| may be gone afterwards. */
void ledger_unref(struct ledger *l, struct ledger_block *b, enum block_tier tier);

/* ---- held.c: batches that came before their turn, by number ---- */
struct held_batch {
	uint64_t seq;
	char *payload; /* Owned. */
	size_t n;
};
struct held {
	struct held_batch v[KVSOURCE_HELD_BATCHES];
	size_t n, bytes;
};
/* Return false when there is no room. A number that is already held keeps its first payload. */
bool held_put(struct held *h, uint64_t seq, struct cgn_str payload);
bool held_take(struct held *h, uint64_t seq, struct held_batch *out); /* The caller frees the payload. */
uint64_t held_first(const struct held *h);                            /* UINT64_MAX: none. */
void held_drop_below(struct held *h, uint64_t seq);
void held_clear(struct held *h);

/* ---- the source ---- */
#define FINGERPRINTS 1024

struct kvsource {
	uint32_t tag;
	struct kvsource_cfg cfg;
	char model[257];
	enum kvsource_state state;
	char why[200];
	struct ledger ledger;
	struct held held;
	bool missed;                                 /* A batch found no room. */
	bool connected, started, complete, hopeless; /* hopeless: demoted until the publisher restarts. */
	/* base: first batch applied; next: next to apply; floor: first batch of a replay. */
	uint64_t base, next, floor;
	uint64_t fingerprints[FINGERPRINTS]; /* Fingerprints of the batches applied last. */
	bool replaying, verify;
	/* Kind of the replay: audit only checks whether a batch is missing; resync learns everything again
	 * and forgets the old blocks when it is answered. */
	bool audit, resync;
	unsigned fruitless; /* Consecutive replays that brought nothing. */
	uint64_t next_at_ask;
	cgn_nsec replay_due, cooldown_until, stale_at, quiet_at;
	cgn_nsec restarts_since; /* Time of the first of |restarts_n|. */
	unsigned restarts_n;
	struct kvsource_stats stats;
	struct cgn_buf scratch;
	struct digest *digests; /* LEDGER_MAX_SPLIT digests. */
	cgn_rc trouble;         /* Failure of the batch being applied. */
	char trouble_why[200];
};

/* ---- apply.c ---- */
/* Apply one batch. Fails with INVALID when the batch can't be parsed, and with other codes when the engine
 * can't be followed; |why| has the reason. */
CGN_RC kvsource_apply(struct kvsource *s, struct cgn_str payload, struct cgn_err *why);
