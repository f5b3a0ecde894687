/* SPDX-License-Identifier: Apache-2.0 */
/* fingerprint: the engine's identity, inside slotmgr. */
#pragma once
#include "base/core/arena.h"
#include "base/core/buf.h"
#include "io/wire/webask/webask.h"
#include "policy/kv/slots/entry.h"

struct slotmgr;
struct fingerprint_job;
/* Checksums of files, so that an engine that is started again does not have its weights read again. A file counts as the
 * same while inode, size and times are. */
#define WEIGHTS_KEPT 16
struct weights_sum {
	uint64_t device, inode, bytes, modified_ns, changed_ns; /* bytes 0: the place is empty */
	uint8_t sum[16];
};
/* Decides which stored states mean the same to the engine. */
struct slot_fingerprint {
	bool known;            /* |keys| are valid */
	bool followed;         /* The directory has all changes of states under |keys| */
	struct slot_keys keys; /* Keys of the states that fit */
	char build[128];       /* The engine's build_info */
	uint32_t n_slots;
	struct cgn_buf adapters; /* Adapters and their scales as fingerprinted; empty: the engine has none */
	struct fingerprint_job *job;
	struct weights_sum kept[WEIGHTS_KEPT]; /* Copied to a job and back. */
	/* From the configuration */
	struct cgn_arena arena;
	const char *model_path; /* NULL: not configured */
	const char **extra_args;
	size_t n_extra_args;
	bool managed;
	char kv_tag[257];
};
/* Compute the engine's fingerprint; |known| is called with it, never inline. Retries until cancelled. */
void fingerprint_start(struct slotmgr *m,
	void (*known)(struct slotmgr *m, const struct digest *fingerprint, uint32_t n_slots,
		const char *build));
void fingerprint_cancel(struct slotmgr *m);
/* Clients can change the adapters' scales while the engine runs (POST /lora-adapters). For an engine with
 * adapters the scales are read again before each save and each restore. */
bool fingerprint_may_change(const struct slotmgr *m);
CGN_RC fingerprint_reread(struct slotmgr *m, webask_done *done, void *user, struct webask **out,
	struct cgn_err *err);
enum fingerprint_match { FINGERPRINT_SAME, FINGERPRINT_CHANGED, FINGERPRINT_UNKNOWN /* Unreadable answer */ };
/* Compare an answer of fingerprint_reread with the fingerprint. */
enum fingerprint_match fingerprint_compare(const struct slotmgr *m, const struct webask_answer *r);
