/* SPDX-License-Identifier: Apache-2.0 */
/* summary: a cluster's report of itself to another one: the load and the speed of each model, and which
 * blocks it caches (set.h). Pure.
 *
 * The sets of a cluster are numbered by generations; the first number of a run is random, so that no number means two
 * sets. An answer has either the whole set of a generation, or the changes from the generation that the asking side has.
 * Each answer has the sum of its generation's set: a side whose set has another one asks for the whole.
 *
 * Wire, little-endian, version 2: u32 magic · u8 version · u8 shift · u8 width · number of models · u64 generation · number
 * of changes and one, 0: the whole follows · u64 sum · number of blocks · models · sets (code.h). A model: u8 length and
 * name, 9 numbers. Sets: the whole one, unless the generation is 0, or for each change the places of the removed ones in
 * the set before it, and the added ones.
 *
 * Several routers of a cluster may answer at one address, each with generations of its own. So the asking side names all
 * that it has, and the changes are to the one that the router knows.
 *
 * Version 1, for sides that ask without a version: u32 magic · u8 version · u8 shift · u16 models · u64 generation · u64
 * base (0: the whole follows) · u64 sum · u32 blocks · u16 sets · models · sets. A model: u8 length and name, 6 u32 and 3
 * u64. Sets: one, or for each generation after the base the removed and the added ones, all of the full
 * width. */
/* peer, the room: other clusters that may answer a request: their reports, and whether a request leaves for one. */
#pragma once
#include "base/core/buf.h"
#include "base/core/str.h"
#include "policy/route/peer/set.h"

#define PEER_VERSION 2 /* Greatest version that this program writes and reads; the least one is 1. */

#define PEER_MODELS 64
#define PEER_NAME   255 /* Bytes of a model's name. */
#define PEER_DELTAS 16  /* Generations that are kept as changes. */
#define PEER_HEAD   38
/* Bytes of an answer: the head, the models, and PEER_BLOCKS at 12 bits each, doubled. */
#define PEER_BYTES ((size_t)16 * 1024 * 1024)

#define PEER_ROOM_ANY UINT32_MAX /* Nodes have no limit. */

/* The load of one model. 0: unknown, unless something else is said. */
struct peer_load {
	struct cgn_str name;
	uint32_t nodes;         /* Ready; 0: none is. */
	uint32_t inflight;      /* Requests at the nodes. */
	uint32_t room;          /* Further requests that the nodes take; 0: none. */
	uint32_t waiting;       /* Requests in the queue; 0: none. */
	uint32_t wait_us;       /* Time for prompts before the next one on the best node; 0: none. */
	uint32_t prefill_ns;    /* Time of a prompt's token that is not cached. */
	uint64_t input, output; /* Prices of a token, in trillionths of the cluster's currency. */
	uint64_t prefill_uj;    /* Microjoules of a prompt's token that is not cached. */
};

struct peer_summary {
	unsigned version; /* 1 to PEER_VERSION. */
	unsigned shift, width;
	uint64_t generation, base, sum;
	uint32_t blocks;
	struct peer_load models[PEER_MODELS];
	size_t n_models;
};

/* ---- the telling side ---- */

/* The sets of a cluster as one other side may know them. One owner. Memory: 4 bytes a block, and at most a quarter of
 * that, or 64 KiB, for changes. */
struct peer_journal {
	uint64_t generation; /* 0: nothing was recorded. */
	unsigned shift, version;
	struct peer_set *set; /* A reference; NULL: nothing was recorded. */
	/* Codes of the removed and the added ones, by generation, modulo. */
	struct cgn_buf deltas[PEER_DELTAS];
	unsigned n_deltas; /* The last ones, up to |generation|. */
	size_t bytes;      /* Sum of their codes. */
};
/* Make |*take|, which is taken and has no other reference, the newest generation, unless it has the members of the one before.
 * |version|: of the answers; from version 2 on the set is narrowed. |first|: random, the number of the first one. Without
 * memory for changes none are kept. */
void peer_journal_add(struct peer_journal *j, struct peer_set **take, unsigned shift, unsigned version,
	uint64_t first);
void peer_journal_fini(struct peer_journal *j);
/* Return that of |n| generations from which the fewest changes lead to the newest; 0: none of them can be told from. */
uint64_t peer_journal_pick(const struct peer_journal *j, const uint64_t *since, size_t n);
/* Fill |out|, but for its models, with the answer to one who has generation |since| and reads |version|; |*whole|: the
 * answer is the whole set, of which the caller gets a reference; NULL: it is the changes, whose code is appended to |sets|.
 * If the journal's version is greater than |version|, the answer is that nothing was recorded yet. */
void peer_journal_ask(const struct peer_journal *j, uint64_t since, unsigned version,
	struct peer_summary *out, struct peer_set **whole, struct cgn_buf *sets);

/* Append the answer: the head, the models, and the set |whole|, or |sets| as peer_journal_ask made them. */
void peer_summary_put(const struct peer_summary *s, const struct peer_set *whole, struct cgn_str sets,
	struct cgn_buf *out);

/* ---- the asking side ---- */

/* Read an answer to one who has |set| (NULL: nothing) of |generation|, and whose sampling was |shift|. |out|
 * borrows names from |bytes|. |*now| is the set of out->generation, which the caller owns: |set| with another
 * reference, if nothing changed. CGN_INVALID: the bytes are not an answer, or one to another question.
 * CGN_CONFLICT: the set would differ from the other side's; ask for the whole. CGN_NO_MEMORY. */
struct peer_known {
	struct peer_set *set;
	uint64_t generation;
	unsigned shift;
};
/* Several routers of a cluster, each with its own sets, may answer at one address: so many sets of it are kept. */
#define PEER_VIEWS 4
/* Return to which of |n| sets the answer tells changes; |n|: to none of them, it is a whole set, or not an
 * answer. |room| is overwritten. */
size_t peer_summary_which(struct cgn_str bytes, const struct peer_known *known, size_t n,
	struct peer_summary *room);
CGN_RC peer_summary_get(struct cgn_str bytes, const struct peer_known *known, struct peer_summary *out,
	struct peer_set **now, struct cgn_err *err);
