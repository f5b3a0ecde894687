/* SPDX-License-Identifier: Apache-2.0 */
/* slotmgr: the slot manager of one llama-server. It assigns requests to the server's slots, so it knows which
 * conversation each slot holds; it saves a slot's state into the node's block store before another
 * conversation takes the slot; and it restores a stored state, of this node or of a peer, for a prompt that
 * begins the same way.
 *
 * The slot manager works while the engine is ready, the engine's fingerprint is known, and the store answers.
 * At all other times, and after any failure, requests reach the engine unchanged.
 *
 * Disk: one file in engine.slot_dir for each save (at most SLOTMGR_MAX_SAVES) and each restore (at most one
 * for each slot). A file that the engine writes after its save or restore has ended is removed within 10 s.
 * One loop, its thread. */
#pragma once
#include "base/json/json.h"
#include "base/pb/pb_tree.h"
#include "cognitora/v1/engines.pb-c.h"
#include "io/os/loop/loop.h"
#include "io/wire/webask/webask.h"
#include "joint/kv/kvclient/kvclient.h"
#include "policy/config/config.h"
#include "policy/kv/holdings/holdings.h"
#include "policy/kv/slots/body.h"
#include "policy/kv/slots/slots.h"
#include "policy/node/engine/usagescan.h"

/* Where the beginning of a prompt came from, or why it was computed. The help of the metric
 * cgn_agent_slot_prompts_total has one entry for each. */
enum restore_outcome {
	RESTORE_NOT_NEEDED, /* The slot holds the prompt, or all but kv_save_min_tokens of it */
	RESTORE_FROM_RAM,
	RESTORE_FROM_SSD,
	RESTORE_FROM_PEER,
	RESTORE_NO_STATE,          /* No stored state begins like the prompt */
	RESTORE_SKIPPED_SHORT,     /* The stored state would save less than kv_save_min_tokens */
	RESTORE_SKIPPED_SLOWER,    /* By measurement, computing is faster than the restore */
	RESTORE_SKIPPED_REFUSED,   /* The engine refused this state before */
	RESTORE_FAILED_STATE_GONE, /* The store lost the state in the meantime */
	RESTORE_FAILED_ENGINE,     /* The engine refused the state */
	RESTORE_FAILED_TIMEOUT,    /* kv_restore_timeout elapsed */
	RESTORE_FAILED_STORAGE,    /* The store, the slot folder or memory failed */
	RESTORE_SKIPPED_PAUSED,    /* The engine failed recently; saves and restores pause */
	RESTORE_SKIPPED_BY_CLIENT, /* The request sets cache_prompt or lora */
	RESTORE_SKIPPED_UNPLACEABLE, /* The request names a slot, asks for several answers, or its route has no slots */
	RESTORE_SKIPPED_OFF, /* The slot manager is not working; /engines says why */
	RESTORE_OUTCOMES
};
/* Return the outcome's metric label; static. */
const char *restore_outcome_text(enum restore_outcome outcome);

/* ---- the manager ---- */
/* The state of the engine, as its owner knows it. */
struct slotmgr_engine {
	bool ready;
	const char *model;    /* First model that the engine serves, or NULL; borrowed until the next turn */
	uint32_t block_bytes; /* Bytes of prompt in the smallest block of the chains that routers send */
};
/* The owner's side of the slot manager. */
struct slotmgr_ops {
	/* Return the engine's readiness and model. */
	struct slotmgr_engine (*engine)(void *user);
	/* Return the client of the node's block store; NULL when no store is configured. */
	struct kvclient *(*store)(void *user);
	/* Watch the store from the beginning again: a reset and all keys follow. */
	void (*rewatch_store)(void *user);
	/* The slot manager knows the slots' content (true), or stops to know it (false). */
	void (*residency_changed)(void *user, bool known);
};
struct slotmgr_cfg {
	struct cgn_loop *loop;
	struct telemetry *telemetry; /* Borrowed */
	const char *name;            /* Engine name, for logs and metrics; outlives the manager */
	struct webask_endpoint endpoint;
	struct holdings *holdings; /* Told which blocks slots and stored states hold; outlives the manager */
	const struct config_engine *engine; /* Copied where the manager needs it later */
	const struct slotmgr_ops *ops;
	void *user;
};

struct slotmgr;
/* Create the slot manager of an engine. *out stays NULL for an engine whose slots are not kept: no llama_cpp,
 * or no slot_dir. A half-open manager is left in *out for slotmgr_close when this fails. Fails on a slot_dir
 * that is too long, cannot be created or belongs to another engine, and without memory.
 * The functions below do nothing when |m| is NULL. */
CGN_RC slotmgr_open(const struct slotmgr_cfg *cfg, struct slotmgr **out, struct cgn_err *err);
void slotmgr_close(struct slotmgr **take); /* NULL-safe */
/* The engine became ready, or is ready no longer. */
void slotmgr_engine_ready(struct slotmgr *m, bool ready);
void slotmgr_models_known(struct slotmgr *m);
/* Learn from the engine's answer to GET /slots; any other JSON is ignored. */
void slotmgr_slots_told(struct slotmgr *m, struct cgn_str json);
/* The store became reachable, or is reachable no longer. */
void slotmgr_store_ready(struct slotmgr *m, bool ready);
/* Changes of the store's keys; |reset|: the changes begin from an empty store. */
void slotmgr_store_changed(struct slotmgr *m, bool reset, const struct block_change *changes, size_t n);
/* Return the slots for /engines; NULL when |m| is NULL. */
Cognitora__V1__KeptSlots *slotmgr_report_new(const struct slotmgr *m, struct pb_tree *t);
/* True while the slot manager assigns the engine's slots. */
bool slotmgr_assigns(const struct slotmgr *m);
/* True when the state of a prompt can be saved now. */
bool slotmgr_can_store(const struct slotmgr *m);
/* True when the manager assigns slots, or will not soon: it cannot, or the store is not reachable. Call while the engine is
 * ready. */
bool slotmgr_is_settled(const struct slotmgr *m);
/* The engine is about to be stopped, and its requests have ended: save what the slots hold, without waiting for
 * kv_save_idle. Call slotmgr_flush_step every few milliseconds until it returns true: all is in the store, or cannot be
 * saved. */
void slotmgr_flush_begin(struct slotmgr *m);
bool slotmgr_flush_step(struct slotmgr *m);

/* The conversation whose last prompt ended with the block |last| waits for a tool: its slot is kept for it, or its state
 * is restored shortly before it is expected back. Nothing happens if the engine does not have it. */
void slotmgr_pause(struct slotmgr *m, uint64_t last, cgn_nsec p50, cgn_nsec p90);

/* ---- a request ---- */
struct slot_save;
struct slot_restore;
struct slot_lookup;
/* A request on its way into a slot. The caller zeroes the struct, fills in its first part and calls
 * slotmgr_place. */
enum placement_state {
#define PLACEMENT(id, exits, why) PLACEMENT_##id,
#include "joint/kv/slotmgr/states.def"
#undef PLACEMENT
};

struct slot_placement {
	const char *id;            /* Request id for the log; borrowed until slotmgr_answer_end */
	struct cgn_str path, body; /* Borrowed until |go| */
	const uint64_t *chain;     /* Block digests of the prompt; borrowed until prefilled or ended */
	size_t n;                  /* Blocks in |chain| */
	uint32_t block_tokens;     /* Tokens in a block; 0: blocks are counted in bytes */
	struct cgn_str
		tenant; /* For whom; empty: not known. Borrowed until |go|, at most BLOCK_MAX_TENANT bytes */
	int leg;        /* COGNITORA__V1__LEG__* */
	struct slot_body at; /* As slot_body_read reads |body| */
	/* Send the request on, into |slot|; SLOTS_NONE: send it unchanged. Called once, possibly inline from
	 * slotmgr_place, never after slotmgr_answer_end. */
	void (*go)(struct slot_placement *p);

	/* Owned by the slot manager; the caller may read |slot| and |restored|. */
	struct slotmgr *mgr; /* NULL: the request is not placed */
	uint64_t epoch;      /* The manager's epoch at the start */
	uint32_t slot;
	enum placement_state state;   /* Written by slot_placement_move alone */
	struct cgn_link link;         /* In the manager's |waiting| or |preparing| list */
	struct cgn_timer timeout;     /* Runs while the request waits */
	struct slot_restore *restore; /* Steps that the request waits for; NULL: none */
	struct slot_save *save;
	struct slot_lookup *lookup;
	cgn_nsec began;
	enum restore_outcome outcome;
	bool restored; /* A state was restored: its id, first checksum and duration follow */
	uint64_t state_id, state_sum;
	double restore_ms;
	double held_tokens; /* Estimated tokens that the slot held before the restore */
	void (*stored)(struct slot_placement *p, bool ok);
};
/* Find a slot for the request, restore the missing tokens there, then call |p->go|. */
void slotmgr_place(struct slotmgr *m, struct slot_placement *p);
/* The engine has computed the request's prompt. */
void slotmgr_prefilled(struct slot_placement *p);
/* The answer has ended, or will not come. |answer|: what a complete answer has told; NULL: it is not complete. A second
 * call does nothing. */
void slotmgr_answer_end(struct slot_placement *p, const struct usagescan *answer);
/* Instead of slotmgr_answer_end, after a complete answer: save the slot's state into the store now. |stored| is
 * called once, possibly inline, unless slotmgr_answer_end is called first. */
void slotmgr_store(struct slot_placement *p, const struct usagescan *answer,
	void (*stored)(struct slot_placement *p, bool ok));
