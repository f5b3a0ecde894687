/* SPDX-License-Identifier: Apache-2.0 */
/* files: cordons and documents in cluster.state_dir, for backends without a store. */
#pragma once
#include "joint/cluster/state/state_priv.h"

struct state_files {
	struct state_watch *s;
	struct statefile *cordons;
	bool telling; /* the cordons of a write are being reported; one that comes meanwhile waits */
	struct document_file {
		struct state_files *f;
		struct statefile *file;
		struct state_request *rq; /* the change that is being written; NULL: none */
	} documents[STATE_DOCUMENTS];
};
/* Read all files. Logs a warning when they cannot be written, or are another router's. */
void state_files_open(struct state_files *f, struct state_watch *s, const struct config *cfg);
void state_files_close(struct state_files *f);
/* May this router write them? When the place was another router's until now, read them again first. */
bool state_files_hold(struct state_files *f, struct state_watch *s, struct cgn_err *err);
void state_files_cordon(struct state_files *f, struct state_watch *s, struct state_request *rq);
void state_files_failed(struct state_request *rq, const struct cgn_err *why); /* sets |rq|->err */

/* ---- files_documents.c ---- */
/* A change is refused with CGN_CONFLICT if another one was stored since the document was read. |rq| is ready when the
 * change is on the disk, or failed. */
void state_files_put(struct state_files *f, struct state_watch *s, struct state_request *rq);
/* Append the file to |out|; no file: nothing. False: it cannot be read, and that is logged. */
bool state_document_read(const char *file, enum state_document d, struct cgn_buf *out);
