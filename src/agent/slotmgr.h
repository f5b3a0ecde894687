/* SPDX-License-Identifier: Apache-2.0 */
/* keep: the slots of a llama-server whose states are kept in the node's block store. The agent assigns them,
 * so it knows what lies where; puts what a slot holds into the store before another conversation gets it; and
 * brings it back for whoever begins alike, on this node or on another.
 *
 * It is at work while the engine is ready, its fingerprint is known, and the store answers. Else, and
 * wherever anything goes wrong, requests go to the engine as they came. Bounds: a file in slot_dir for each
 * save and restore under way, of which there are SLOTMGR_MAX_SAVES and a slot's each; one that the engine writes
 * when nobody waits for it any more is removed within 10 s. */
#pragma once
#include "agent/agent.h"
#include "joint/kvclient/kvclient.h"
#include "policy/engine/usage.h"
#include "policy/slots/body.h"
#include "policy/slots/directory.h"
#include "policy/slots/entry.h"
#include "policy/slots/slots.h"

#define SLOTMGR_MAX_SAVES   4
#define SLOTMGR_MAX_GETS    16 /* of cards, at once */
#define SLOTMGR_MAX_REFUSED 64
#define SLOTMGR_TOKEN_SLACK 2 /* an answer's last tokens are taken in or not */

struct keep;
struct sweep;
struct save;
struct restore;
struct look;
struct slot_placement;

/* Where the beginning of a prompt came from, or why it was computed. One row each in the metric's help. */
enum restore_outcome {
	RESTORE_NOT_NEEDED, /* the slot had it, or all but kv_save_min_tokens of it */
	RESTORE_FROM_RAM,   /* brought back */
	RESTORE_FROM_SSD,
	RESTORE_FROM_PEER,
	RESTORE_NO_STATE,          /* nobody has a state that begins so */
	RESTORE_SKIPPED_SHORT,     /* somebody has, and it would spare less than kv_save_min_tokens */
	RESTORE_SKIPPED_SLOWER,    /* bringing it takes longer than computing, as measured */
	RESTORE_SKIPPED_REFUSED,   /* the engine did not take that state before */
	RESTORE_FAILED_STATE_GONE, /* the store lost it meanwhile */
	RESTORE_FAILED_ENGINE,     /* the engine did not take it */
	RESTORE_FAILED_TIMEOUT,    /* kv_restore_timeout */
	RESTORE_FAILED_STORAGE,    /* the store, the folder, memory */
	RESTORE_SKIPPED_PAUSED,    /* the engine failed lately, and is left alone */
	RESTORE_SKIPPED_BY_CLIENT, /* the client wants it so: cache_prompt, lora */
	/* the agent can't place it: a slot of the client's choice, several answers, a route without slots */
	RESTORE_SKIPPED_UNPLACEABLE,
	RESTORE_SKIPPED_OFF, /* slots are not kept now: /engines says why */
	RESTORE_OUTCOMES
};
const char *restore_outcome_text(enum restore_outcome how); /* static */

/* ---- place.c: which slot, and when ---- */
/* A request on its way to a slot. Zero it, fill in the first part, call slotmgr_place. */
struct slot_placement {
	const char *id;            /* of the request, for the log; borrowed until slotmgr_answer_end */
	struct cgn_str path, body; /* borrowed until |go| */
	const uint64_t *chain;     /* borrowed until slotmgr_prefilled or slotmgr_answer_end */
	size_t n;
	uint32_t block_tokens; /* 0: blocks of bytes */
	int leg;               /* COGNITORA__V1__LEG__* */
	/* Send it now, into |slot|; SLOTS_NONE: as it came. Once, perhaps before slotmgr_place returns; not
	 * after slotmgr_answer_end. */
	void (*go)(struct slot_placement *p);

	struct keep *keep; /* NULL: not placed */
	uint64_t epoch;
	uint32_t slot;
	struct slot_body at;
	bool busy;            /* its slot computes for it */
	struct cgn_link link; /* of those that wait, or that something is brought for */
	struct cgn_timer deadline;
	struct restore *restore; /* that it waits for */
	struct save *save;
	struct look *look;
	cgn_nsec began;
	/* For what it is worth. */
	enum restore_outcome how;
	uint64_t state, sum; /* that was restored */
	bool restored;
	double had; /* tokens that the slot held without it, about */
	double restore_ms;
	void (*stored)(struct slot_placement *p, bool ok);
};
void slotmgr_place(struct engine *e, struct slot_placement *p);
void slotmgr_prefilled(struct slot_placement *p); /* its prompt is computed */
/* The answer is over, or will not come; |tail| is the end of it, empty when it did not come whole. Does
 * nothing the second time. */
void slotmgr_answer_end(struct slot_placement *p, struct cgn_str tail);
/* In slotmgr_answer_end's stead, of an answer that came whole: put its slot into the store now. |stored| comes once,
 * perhaps inline, unless slotmgr_answer_end is called before. */
void slotmgr_store(struct slot_placement *p, struct cgn_str tail,
	void (*stored)(struct slot_placement *p, bool ok));
bool slotmgr_can_store(const struct engine *e); /* else its prompt would be computed in vain */

/* ---- keep.c: when it is at work, and what routers are told ---- */
/* e->keep stays NULL for an engine without slots */
CGN_RC slotmgr_open(struct engine *e, const struct config_engine *ce, struct cgn_err *err);
void slotmgr_close(struct engine *e);
void slotmgr_engine_ready(struct engine *e, bool ready);
void slotmgr_models_known(struct engine *e);
void slotmgr_slots_told(struct engine *e, struct cgn_str json); /* an answer to GET /slots */
void slotmgr_store_ready(struct engine *e, bool ready);
void slotmgr_store_changed(struct engine *e, bool reset, const struct block_change *changes, size_t n);
void slotmgr_report(const struct engine *e, struct json_out *o); /* for /engines: an object, or null */

/* ---- inside ---- */
#define SLOTMGR_TAG 0xa9e17006U
struct keep {
	uint32_t tag;
	struct engine *e;
	char dir[512], tag_text[257];
	uint32_t least_tokens;
	cgn_nsec idle, timeout;

	struct slots *slots; /* NULL: not at work */
	uint64_t epoch;      /* of |slots| */
	cgn_nsec *idle_since;
	int64_t *task; /* by slot, as /slots told it last; -1: ours ran since */
	struct slot_directory *slot_directory;
	struct slot_keys keys;
	bool printed; /* keys are known */
	struct print *print;
	uint32_t n_slots;
	struct slots_pace pace;
	double block_tokens; /* of the chains that came; moving average */
	struct cgn_link waiting, preparing, saves_now, restores_now;
	size_t n_saves;
	struct cgn_link gets;
	uint64_t *wanted; /* states whose card is to be read */
	size_t n_gets, n_wanted, cap_wanted;
	struct cgn_timer idle_timer;
	struct cgn_link files_now;
	uint64_t files; /* numbered */
	int lock;       /* the open folder; -1: it is not ours (yet) */
	struct cgn_timer sweep_timer;
	struct sweep *sweep;
	uint64_t *words;         /* of a card that is being read */
	struct cgn_buf adapters; /* as they are in its fingerprint; empty: it has none */
	char trouble[200], build[128];
	struct metric_cell *m_saved_bytes, *m_restored_tokens, *m_restore_seconds, *m_spared, *m_states;
	cgn_nsec pause, resume_at; /* the engine failed: it is not asked to save or restore before */
	struct {
		uint64_t id, sum;
	} refused[SLOTMGR_MAX_REFUSED]; /* states that it did not take, by key and first checksum */
	size_t n_refused;               /* ever */
	uint64_t hows[RESTORE_OUTCOMES];
	uint64_t saves, save_failures, restores, restore_failures, restored_tokens, strays;
	double spared_ms;
};
/* it has become idle: somebody may wait for it, or it may be saved */
void slotmgr_slot_idle(struct keep *k, uint32_t slot);
void slotmgr_idle_step(struct keep *k); /* save what has been idle for long enough */
/* it is another one by its fingerprint: all is stopped, and begun anew when that is known */
void slotmgr_engine_changed(struct keep *k);
void slotmgr_release_all(struct keep *k); /* those who wait go on as they came */
struct kvclient *slotmgr_kvclient(const struct keep *k);
struct block_key slotmgr_key(const uint8_t tail[SLOT_KEY_TAIL], uint64_t block, uint32_t segment);
/* A save or restore that the engine did well, or not: after each failure in a row it is left alone twice as
 * long (1 s to 1 min). */
void slotmgr_engine_did(struct keep *k, bool well);
bool slotmgr_is_paused(const struct keep *k);
/* Is bringing so many tokens back worth it? RESTORE_NO_STATE: yes. */
enum restore_outcome slotmgr_worth(const struct keep *k, uint32_t tokens, uint64_t bytes,
	enum slots_from from);
/* A state that the engine did not take, or that was of no use: it is not brought again. */
void slotmgr_refuse(struct keep *k, uint64_t id, uint64_t sum);
bool slotmgr_refuses(const struct keep *k, const struct slot_entry *c);
/* logged, the same not twice in a row */
void slotmgr_trouble(struct keep *k, const char *what, const char *why);

/* folder.c: slot_dir. A file there is of one save or restore, from begin to end; what is beside those is
 * removed. */
struct slot_file {
	struct cgn_link link;
	uint64_t number;
	char path[600];   /* of the state; the checkpoints' has ".ckpt" behind it */
	const char *name; /* in |path| */
};
void slot_file_begin(struct keep *k, const char *kind, struct slot_file *f);
void slot_file_end(struct slot_file *f); /* twice does no harm */
/* It is ours alone from now on, and empty of what was left in it. CGN_STORAGE: somebody else's, or none. Does
 * nothing when it is ours already. */
CGN_RC folder_take(struct keep *k, struct cgn_err *err);
void folder_leave(struct keep *k);

/* save.c: a slot's state into the store. The slot is idle, and moving until |moved|. |moved| comes once the
 * slot is idle again, |stored| when the store has it, or when that failed; both unless save_leave was called,
 * and never inline. NULL: it could not begin, the slot is idle. */
struct save *save_start(struct keep *k, uint32_t slot, void (*moved)(void *user),
	void (*stored)(void *user, bool ok), void *user);
void save_leave(struct save **take); /* goes on alone; NULL-safe */

/* restore.c: a state into a slot, which is moving, and idle at |done|. Never inline. NULL: it could not
 * begin. */
struct restore_result {
	bool ok;
	enum restore_outcome how;
	uint32_t tokens;
	double ms;
};
struct restore *restore_start(struct keep *k, uint32_t slot, const struct slot_entry *c, enum slots_from from,
	void (*done)(void *user, const struct restore_result *r), void *user);
void restore_leave(struct restore **take); /* it goes on alone, and makes the slot idle; NULL-safe */
/* look.c: the store's links for a state of another node's. |done| once, never inline; card NULL: there is
 * none that pays, |how| says why. */
struct look *lookup_start(struct keep *k, const uint64_t *chain, size_t n, size_t common, bool patient,
	void (*done)(void *user, const struct slot_entry *c, enum restore_outcome how), void *user);
void lookup_cancel(struct look **take);
/* print.c: what the engine is, as a digest; again each time that it gets ready. */
void fingerprint_start(struct keep *k);
void fingerprint_cancel(struct keep *k);
/* How strongly adapters count can be changed while the engine runs (POST /lora-adapters). So of one that has
 * any they are read again before a state gets the name of its fingerprint, and before one of that name is
 * restored. */
bool fingerprint_may_change(const struct keep *k);
CGN_RC fingerprint_reread(struct keep *k, void (*done)(void *user, const struct fetch_result *r), void *user,
	struct fetch **out, struct cgn_err *err);
enum fingerprint_match { FINGERPRINT_SAME, FINGERPRINT_CHANGED, FINGERPRINT_UNKNOWN /* it did not say */ };
enum fingerprint_match fingerprint_compare(const struct keep *k, const struct fetch_result *r);
void slotmgr_fingerprint_known(struct keep *k, const struct digest *fingerprint, uint32_t n_slots,
	const char *build);
/* Forget it, whatever is under way. |stored| comes, |moved| and |done| do not: whoever waits for those is on
 * a list of the keep's. */
void save_stop(struct cgn_link *job);
void restore_stop(struct cgn_link *job);
