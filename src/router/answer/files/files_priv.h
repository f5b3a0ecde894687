/* SPDX-License-Identifier: Apache-2.0 */
/* files, inside: a request between its loop (files.c) and the thread pool (work.c). */
#pragma once
#include "base/coding/coding.h"
#include "policy/answer/batch/batch.h"
#include "router/answer/files/files.h"
#include "router/shared/filestore/filestore.h"
#include "router/shared/quotas/quotas.h"

enum filing_op {
	FILING_UPLOAD,
	FILING_FILES,
	FILING_FILE,
	FILING_CONTENT,
	FILING_DELETE,
	FILING_CREATE,
	FILING_BATCHES,
	FILING_BATCH,
	FILING_CANCEL
};

#define FILING_TAG      0x66690e01U
#define FILING_JSON_MAX ((size_t)65536) /* Bytes of the body of a request for a batch. */

struct gw_filing {
	uint32_t tag;
	struct gw_req *r; /* NULL: the request has ended; only the loop looks at it. */
	struct cgn_loop *loop;
	struct gw_shared *shared;
	bool busy; /* A job has the members below. */
	bool paused, answering;
	enum filing_op op;
	char id[64], tenant[FILESTORE_TENANT_MAX + 1], key[BATCH_KEY_MAX];
	char share[QUOTA_NAME_MAX + 1]; /* The tenant, as the holder of a request at once. */
	struct cgn_buf holder;          /* See policy/who/claims/kept.h; empty: no token makes a batch. */
	/* The query. */
	char after[64], purpose[16];
	bool oldest_first;
	size_t limit;
	char boundary[80];
	uint64_t received;
	enum coding_kind coding; /* The body's Content-Encoding. */
	uint64_t booked;         /* Bytes booked of router.max_inflight_body, for the decoder. */
	struct cgn_buf in;       /* Came, and no job has it. */

	/* ---- members of the job ---- */
	struct cgn_buf piece;
	bool last; /* |piece| is the body's end. */
	struct coding *decoder;
	uint64_t decoded;    /* Bytes of the text until now. */
	bool damaged;        /* The coded body is what failed. */
	struct cgn_buf text; /* FILING_CREATE: the whole text. */
	struct filestore_upload *upload;
	int fd;                     /* Descriptor of the content; -1: none. */
	struct filestore_file file; /* FILING_CONTENT: the file; its id is "" until it was found. */
	uint64_t at, left;          /* Bytes that were read, and those that were not. */
	/* The answer: |out| if |rc| is fine. */
	struct cgn_buf out;
	cgn_rc rc;
	struct cgn_err err;
	const char *param; /* Faulty parameter; NULL: none. */
	/* The tenant's share of |kind|, by which |rc| is OVERLOADED; limit 0: another limit refused. */
	enum quota_kind kind;
	struct quota_told told;
};

/* Do the work of |f->op|, of an upload for |f->piece|. Any thread, which may wait for the disk. */
void filing_work(void *filing);
