/* SPDX-License-Identifier: Apache-2.0 */
/* kvsource, inside: the ledger of blocks, the batches held back, and the source around them. */
#pragma once
#include "base/core/buf.h"
#include "base/digest/digest.h"
#include "policy/kvevent/kvevent.h"
#include "policy/kvsource/kvsource.h"

/* ---- ledger.c: (group, shape, engine's hash) -> our digests and references; digest -> who refers to it
 * ---- */
#define LEDGER_MAX_SHAPES 8
#define LEDGER_MAX_SPLIT  1024 /* of our blocks in one of the engine's */
/* in a shape: the engine's blocks are pages, so many of which make one of ours */
#define LEDGER_PAGES    0x80000000U
#define LEDGER_MAX_PAGE 8 /* tokens of a page */

struct ledger_block {
	uint64_t hash;
	union {
		struct digest last;               /* of the last of its blocks of ours */
		uint32_t tokens[LEDGER_MAX_PAGE]; /* of a page that does not end a block of ours */
	};
	union {
		uint64_t *earlier; /* the short digests of those before the last; NULL when there is one */
		/* of a page: the hash of the one before; of the first of a prompt: the short digest of its
		 * root */
		uint64_t parent;
	};
	uint16_t refs[BLOCK_TIERS]; /* all 0: an empty slot. One that reached 65535 stays */
	uint8_t group, shape;
	uint8_t place; /* of a page in its block of ours */
	bool first;    /* a page without a parent */
};

/* What the groups say of one of our blocks. */
struct ledger_spot {
	uint64_t digest;
	bool used;
	uint8_t told;    /* tiers that the holdings have from us */
	uint16_t refs[]; /* [groups][BLOCK_TIERS]: blocks that refer to it; 65535 stays */
};

struct ledger {
	struct holdings *holdings;
	size_t max_blocks;
	struct ledger_block *blocks;
	size_t n_blocks, cap_blocks;
	char *spots;
	size_t n_spots, cap_spots, spot_bytes;
	unsigned groups_cap;             /* rows of refs in a spot */
	uint32_t groups, full, required; /* masks: seen; of full attention; that a block needs */
	/* our blocks in one of the engine's, or LEDGER_PAGES and its pages in one of ours */
	uint32_t shapes[LEDGER_MAX_SHAPES];
	unsigned n_shapes;
};
void ledger_init(struct ledger *l, struct holdings *h, size_t max_blocks);
/* everything leaves the holdings, memory is given back; groups are forgotten */
void ledger_clear(struct ledger *l);
CGN_RC ledger_see_group(struct ledger *l, unsigned group, bool windowed);
CGN_RC ledger_shape(struct ledger *l, uint32_t kind, unsigned *out); /* TOO_LARGE: too many */
/* How many pages make a block of ours; 0: this is no shape of pages. */
static inline uint32_t ledger_pages(const struct ledger *l, unsigned shape)
{
	return (l->shapes[shape] & LEDGER_PAGES) != 0 ? l->shapes[shape] & ~LEDGER_PAGES : 0;
}
/* NULL */
struct ledger_block *ledger_find(const struct ledger *l, unsigned group, unsigned shape, uint64_t hash);
/* of any shape */
struct ledger_block *ledger_find_any(const struct ledger *l, unsigned group, uint64_t hash);
/* A new block with one reference in |tier|. |digests|: the split of its shape. TOO_LARGE, NO_MEMORY: nothing
 * changed. */
CGN_RC ledger_add(struct ledger *l, unsigned group, unsigned shape, uint64_t hash,
	const struct digest *digests, enum block_tier tier);
/* The same for a page: |page| has hash, group, shape, place, first, parent, and its tokens, or |last| if it
 * ends a block of ours. */
CGN_RC ledger_add_page(struct ledger *l, const struct ledger_block *page, enum block_tier tier);
CGN_RC ledger_ref(struct ledger *l, struct ledger_block *b, enum block_tier tier);
/* no-op without a reference; |b| may be gone */
void ledger_unref(struct ledger *l, struct ledger_block *b, enum block_tier tier);

/* ---- held.c: batches that came before their turn, by number ---- */
struct held_batch {
	uint64_t seq;
	char *payload; /* owned */
	size_t n;
};
struct held {
	struct held_batch v[KVSOURCE_HELD_BATCHES];
	size_t n, bytes;
};
/* false: no room. A number that is there stays as it is */
bool held_put(struct held *h, uint64_t seq, struct cgn_str payload);
bool held_take(struct held *h, uint64_t seq, struct held_batch *out); /* the caller frees the payload */
uint64_t held_first(const struct held *h);                            /* UINT64_MAX: none */
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
	bool missed;                                 /* a batch that found no room */
	bool connected, started, complete, hopeless; /* hopeless: demoted until another incarnation */
	uint64_t base, next, floor;          /* first applied, next to apply, where replays may begin */
	uint64_t fingerprints[FINGERPRINTS]; /* of the batches applied last */
	bool replaying, verify;
	/* of the replay: only to see whether something is missing; to learn all anew, forgetting when it
	 * answers */
	bool audit, resync;
	unsigned fruitless; /* replays in a row that brought nothing */
	uint64_t next_at_ask;
	cgn_nsec replay_due, cooldown_until, stale_at, quiet_at;
	cgn_nsec restarts_since; /* when the first of |restarts_n| was */
	unsigned restarts_n;
	struct kvsource_stats stats;
	struct cgn_buf scratch;
	struct digest *digests; /* LEDGER_MAX_SPLIT */
	cgn_rc trouble;         /* of the batch being applied */
	char trouble_why[200];
};

/* ---- apply.c ---- */
/* Apply one batch. INVALID: it is unparsable; others: this engine can't be followed. |why| says. */
CGN_RC kvsource_apply(struct kvsource *s, struct cgn_str payload, struct cgn_err *why);
