/* SPDX-License-Identifier: Apache-2.0 */
/* slotmgr, inside: the manager and its parts. */
#pragma once
#include "joint/kv/slotmgr/fingerprint.h"
#include "joint/kv/slotmgr/folder.h"
#include "joint/kv/slotmgr/slotmgr.h"
#include "joint/report/telemetry/telemetry.h"
#include "policy/kv/slots/directory.h"
#include "policy/kv/slots/entry.h"

#define SLOTMGR_TAG         0xa9e17006U
#define SLOTMGR_MAX_SAVES   4
#define SLOTMGR_MAX_GETS    16 /* Slot entries read from the store at once */
#define SLOTMGR_MAX_REFUSED 64
/* The engine may or may not count an answer's last tokens as part of the slot. */
#define SLOTMGR_TOKEN_SLACK 2

/* ---- entries.c: the store's slot entries ---- */
struct slot_entries {
	struct slot_directory *directory;
	struct cgn_link fetches; /* entry_fetch.link */
	size_t n_fetches;
	uint64_t *wanted; /* States whose entry is to be read */
	size_t n_wanted, cap_wanted;
	uint64_t *words; /* Scratch memory for one entry */
};
void slot_entries_open(struct slotmgr *m);
void slot_entries_close(struct slotmgr *m);
void slot_entries_clear(struct slotmgr *m);
void slot_entries_changed(struct slotmgr *m, const struct block_change *changes, size_t n);
/* Read the slot entry in a store's answer and release its lease. |out| borrows from the manager's scratch
 * memory until the next read. False: the answer is not a slot entry. */
bool slot_entries_read(struct slotmgr *m, const struct kvclient_answer *a, struct slot_entry *out);
/* Append the bytes of a store's answer to |out| and release its lease. */
void slot_answer_copy(const struct kvclient_answer *a, struct cgn_buf *out);

/* A tenant's name, copied; n 0: not known. */
struct slot_tenant {
	size_t n;
	char text[BLOCK_MAX_TENANT];
};
static inline struct slot_tenant slot_tenant_of(struct cgn_str s)
{
	struct slot_tenant t = {.n = s.n <= BLOCK_MAX_TENANT ? s.n : 0};
	if (t.n > 0)
		memcpy(t.text, s.p, t.n);
	return t;
}
static inline struct cgn_str slot_tenant_text(const struct slot_tenant *t)
{
	return (struct cgn_str){t->text, t->n};
}

/* ---- status.c: failures, and the counters ---- */
struct slot_backoff {
	cgn_nsec pause;     /* Length of the current pause; 0: the engine did well */
	cgn_nsec resume_at; /* No save or restore before */
	struct {
		uint64_t id, sum;
	} refused[SLOTMGR_MAX_REFUSED]; /* States that the engine refused: id and first checksum */
	size_t n_refused;               /* Ever; the ring keeps the last ones */
};
struct slot_stats {
	uint64_t outcomes[RESTORE_OUTCOMES];
	uint64_t saves, save_failures, restores, restore_failures;
	uint64_t restored_tokens;
	uint64_t strays; /* Requests that reached a slot without the slot manager */
	double spared_ms;
	struct metric_cell *saved_bytes, *restored_tokens_cell, *restore_seconds, *spared_seconds, *states;
};

/* ---- pause.c: conversations that wait for a tool ---- */
#define SLOTMGR_PAUSES 64
struct slot_pause {
	struct slotmgr *mgr;
	uint64_t last;    /* Digest of the prompt's last block; 0: the record is free */
	uint64_t earlier; /* The stored state that the prompt began with when the pause began; 0: none */
	cgn_nsec restore_at, until;
	bool restoring;
	uint32_t slot; /* The slot that the state is restored into */
};
void slotmgr_on_pause(struct cgn_timer *t);
void slotmgr_pauses_forget(struct slotmgr *m);

struct slotmgr {
	uint32_t tag;
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	const char *name;
	struct webask_endpoint endpoint;
	struct holdings *holdings;
	const struct slotmgr_ops *ops;
	void *user;
	uint32_t min_tokens; /* kv_save_min_tokens */
	cgn_nsec idle_timeout, restore_timeout;

	struct slots *slots;         /* NULL: the slot manager is not working */
	uint64_t epoch;              /* Incremented whenever |slots| is dropped */
	cgn_nsec *idle_since;        /* For each slot */
	struct slot_tenant *tenants; /* For each slot, whose prompt was placed there last */
	int64_t *task; /* For each slot, the engine's task number seen last; -1: a placed request ran since */
	struct slots_pace pace;
	double block_tokens;       /* Tokens in a block of the chains that arrived; moving average */
	struct cgn_link waiting;   /* slot_placement.link: requests without a slot */
	struct cgn_link preparing; /* slot_placement.link: requests whose slot is being prepared */
	struct cgn_link saves, restores;
	size_t n_saves;
	struct cgn_timer idle_timer;
	struct slot_pause pauses[SLOTMGR_PAUSES];
	struct cgn_timer pause_timer;
	uint64_t flush_failures; /* stats.save_failures when the flush began */
	char trouble[200];       /* Last failure, for people; empty: none */

	struct slot_fingerprint fingerprint;
	struct slot_folder folder;
	struct slot_entries entries;
	struct slot_backoff backoff;
	struct slot_stats stats;
};
/* Return the store's client while the store is reachable, else NULL. */
struct kvclient *slotmgr_kvclient(const struct slotmgr *m);
struct block_key slotmgr_key(const uint8_t tail[SLOT_KEY_TAIL], uint64_t block, uint32_t segment);
/* Log a failure and show it in /engines; a repetition is not logged again. */
void slotmgr_trouble(struct slotmgr *m, const char *what, const char *why);
/* A save or restore of the engine succeeded or failed. Each failure in a row doubles the pause, from 1 s to
 * 1 min. */
void slotmgr_engine_did(struct slotmgr *m, bool well);
bool slotmgr_is_paused(const struct slotmgr *m);
/* Decide whether restoring |tokens| tokens pays. RESTORE_NO_STATE: it pays; else the reason against it. */
enum restore_outcome slotmgr_worth(const struct slotmgr *m, uint32_t tokens, uint64_t bytes,
	enum slots_from from);
/* Do not restore a state again that the engine refused or found nothing in. */
void slotmgr_refuse(struct slotmgr *m, uint64_t id, uint64_t sum);
bool slotmgr_refuses(const struct slotmgr *m, const struct slot_entry *c);
void slotmgr_count_outcome(struct slotmgr *m, enum restore_outcome outcome);
void slotmgr_get_metrics(struct slotmgr *m);
/* POST the file name to /slots/|slot|?action=|action|. */
CGN_RC slotmgr_ask_engine(struct slotmgr *m, uint32_t slot, const char *action, const char *file,
	cgn_nsec timeout, webask_done *done, void *user, struct webask **out, struct cgn_err *err);

/* Return how long the engine worked on a save or restore, in ms: "timings.|name|" of its answer |doc|, but at most |took|,
 * which includes the wait until the engine's other slots have had their turn. Without a sound number there: |took|. */
double slotmgr_engine_ms(struct json_val doc, const char *name, cgn_nsec took);

/* ---- slotmgr.c ---- */
/* The adapters' scales changed: stop all work and fingerprint the engine again. */
void slotmgr_engine_changed(struct slotmgr *m);

/* ---- placement.c ---- */
bool slot_placement_is_current(const struct slot_placement *p);
/* Change the state; abort on a move that states.def lacks. */
void slot_placement_move(struct slot_placement *p, enum placement_state to);
/* Cancel all that was begun for the request; steps that cannot be cancelled end on their own. */
void slot_placement_detach(struct slot_placement *p);
/* A slot became idle: give it to a waiting request, or plan to save it. */
void slotmgr_slot_idle(struct slotmgr *m, uint32_t slot);
/* Send all waiting requests on, unchanged. */
void slotmgr_release_all(struct slotmgr *m);

/* ---- idle.c ---- */
/* Save the slots that have been idle for long enough. */
void slotmgr_on_idle(struct cgn_timer *t);
