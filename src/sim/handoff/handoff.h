/* SPDX-License-Identifier: Apache-2.0 */
/* handoff: prompts that this simulator computed for others (offers), and prompts that it fetches. An offer is fetched over
 * HTTP from the simulator's own address (POST /sim/handoff), once, within its lease; the bytes of its blocks are sent and
 * compared. One loop, its thread; the computing side is pure.
 *
 * Bounds: SIM_OFFERS_MAX offers, 32 bytes for each of their blocks; SIM_PEERS_MAX other simulators; a fetch of at most
 * SIM_FETCH_BYTES. */
#pragma once
#include "io/os/loop/loop.h"
#include "sim/request/request.h"
#include "sim/store/store.h"

#define SIM_OFFERS_MAX  4096
#define SIM_PEERS_MAX   64
#define SIM_FETCH_BYTES ((size_t)256 << 20)
/* Longest wait of a decode leg that was sent together with its prefill leg. */
#define SIM_FETCH_WAIT (20 * CGN_SEC)

struct sim_handoff_stats {
	/* The side that gives: prompts offered, fetched, and dropped because the lease was over; bytes sent. */
	uint64_t given, fetched, expired, bytes_sent;
	/* The side that takes: prompts and bytes taken, blocks taken, fetches that failed, prompts computed though another
	 * engine should have. */
	uint64_t taken, bytes, blocks, failed, recomputed;
	char last_failure[96];
};

struct sim_handoff;
struct sim_handoff *sim_handoff_new(struct cgn_loop *l, const struct sim_cfg *cfg, uint64_t engine_id);
void sim_handoff_free(struct sim_handoff **take); /* Call after freeing its fetches. NULL-safe. */
/* Entries whose time is over are dropped first. NULL: all zeroes. */
struct sim_handoff_stats sim_handoff_stats(struct sim_handoff *h, cgn_nsec now);
const char *sim_handoff_engine(const struct sim_handoff *h);
/* A prompt is computed here though the node should take it over. */
void sim_handoff_recomputed(struct sim_handoff *h, const char *why);

/* ---- the side that gives ---- */

/* Offer |chain| under |id|; it can be fetched from sim_offer_ready on. False: too many. */
bool sim_offer_begin(struct sim_handoff *h, const char *id, const struct sim_chain *chain);
void sim_offer_ready(struct sim_handoff *h, const char *id, cgn_nsec now);
void sim_offer_drop(struct sim_handoff *h, const char *id);
/* Answer a fetch: append the bytes of the blocks to |out| and return 200; or return 4xx and |*why|. 425: not computed
 * yet. */
int sim_offer_serve(struct sim_handoff *h, struct cgn_str ask, cgn_nsec now, struct cgn_buf *out,
	const char **why);

/* ---- the side that takes ---- */

struct sim_fetch;
/* Fetch the blocks |wants| of one prompt, whose last usable block is named |last|. |done| is called once, never inline,
 * unless the fetch is freed before. */
struct sim_fetch_ask {
	const struct sim_handoff_ask *from;
	struct sim_load_range wants;
	uint32_t blocks; /* Usable blocks of the prompt: the offer must have as many. */
};
struct sim_fetch *sim_fetch_new(struct sim_handoff *h, const struct sim_fetch_ask *ask,
	void (*done)(void *user), void *user);
void sim_fetch_free(struct sim_fetch **take);
/* After |done|: return true when the prompt was taken over, with |*n| blocks from block |*from| on. */
bool sim_fetch_got(const struct sim_fetch *f, uint32_t *from, uint32_t *n);
