/* SPDX-License-Identifier: Apache-2.0 */
/* folder: engine.slot_dir, inside slotmgr. */
#pragma once
#include "base/core/list.h"
#include "io/os/loop/loop.h"

struct slotmgr;
struct slot_folder_sweep;
struct slot_folder {
	char path[512];
	int lock;              /* The open, locked folder; -1: not locked */
	uint64_t last_number;  /* Number of the newest file */
	struct cgn_link files; /* slot_file.link of the files in use */
	struct cgn_timer sweep_timer;
	struct slot_folder_sweep *sweep;
};
/* The file of one save or restore, from its begin to its end. All other files in the folder are removed. */
struct slot_file {
	struct cgn_link link;
	uint64_t number;
	char path[600];   /* The state; the checkpoints' path has ".ckpt" appended */
	const char *name; /* Points into |path| */
};
void slot_file_begin(struct slotmgr *m, const char *kind, struct slot_file *f);
void slot_file_end(struct slot_file *f); /* Idempotent */
/* Lock the folder and remove the files that an earlier agent left. Does nothing when the folder is locked
 * already. CGN_STORAGE: the folder does not exist or belongs to another engine. */
CGN_RC slot_folder_take(struct slotmgr *m, struct cgn_err *err);
void slot_folder_leave(struct slotmgr *m);
