/* SPDX-License-Identifier: Apache-2.0 */
/* files: the requests of /v1/files and /v1/batches. Their work waits for the disk, so the thread pool does it. An upload goes to
 * the disk as it comes: at most FILES_PIECE bytes and what one read brings are in memory. */
#pragma once
#include "router/request/request/request.h"

#define FILES_PIECE ((size_t)256 * 1024)
#define FILES_REMOTE_PIECE \
	((size_t)1 << 20) /* Bytes of a request to the bucket, for a content that is downloaded. */
#define FILES_REMOTE_CALLS \
	16 /* As FILES_CALLS, where contents are in a bucket: each may hold a thread of the pool. */
#define FILES_CALLS 64 /* Such requests at once in a router; more are refused with 503. */

enum gw_step gw_files(struct gw_req *r); /* The state GW_FILES. */
void gw_files_body(struct gw_req *r, struct cgn_str bytes);
void gw_files_end(struct gw_req *r); /* Safe for every request. */
