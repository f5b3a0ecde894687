/* SPDX-License-Identifier: Apache-2.0 */
/* batches: the batches of this router, in memory and each in a file FOLDER/ID.batch. A batch belongs to the router on whose
 * disk it is. Any thread; the functions may wait for the disk. The runner (runner.h) moves batches from state to state;
 * others create and cancel them. */
#pragma once
#include <limits.h>

#include "policy/answer/batch/batch.h"
#include "policy/who/quota/quota.h"

struct batches;
struct batches_cfg {
	const char *folder; /* Made if it is missing. */
	uint32_t max_batches;
	uint64_t keep_s; /* Seconds from a batch's end until it is forgotten. */
};
CGN_RC batches_open(const struct batches_cfg *cfg, struct batches **out, struct cgn_err *err);
void batches_close(struct batches **take);

/* Add |b| and write its file. Takes b->metadata and b->holder on success. CGN_OVERLOADED: the tenant has its share of
 * max_batches (AUTH_NO_TENANT: all), or max_batches are there, as |told| says; CGN_STORAGE. */
CGN_RC batches_add(struct batches *s, struct batch *b, struct quota_told *told, struct cgn_err *err);
/* Return the tenant's number of batches, and its limit. */
struct quota_told batches_share(struct batches *s, struct cgn_str tenant);
/* Append the batch as JSON; false: the tenant has no such batch. */
bool batches_put(struct batches *s, struct cgn_str tenant, struct cgn_str id, struct json_out *j);
/* Append at most |max| batches, the newest first, behind the batch |after| (empty: from the first one). |first| and
 * |last| get the ids of the first and the last one ("": none). Returns whether more follow. */
bool batches_list(struct batches *s, struct cgn_str tenant, struct cgn_str after, size_t max,
	struct json_out *j, char first[BATCH_ID_MAX], char last[BATCH_ID_MAX]);
/* Ask for the end of a batch. CGN_NOT_FOUND; CGN_INVALID: it is over already. */
CGN_RC batches_cancel(struct batches *s, struct cgn_str tenant, struct cgn_str id, struct cgn_err *err);

/* ---- for the runner ---- */
/* Call |each| for a copy of each batch that is not over; its metadata and holder are borrowed for the call. */
void batches_each_open(struct batches *s, void (*each)(void *user, const struct batch *b), void *user);
/* Replace the batch of b->id by |b|, all but its metadata and holder, and write its file. A batch that was cancelled meanwhile stays so
 * unless |b| is over or finalizing. On CGN_STORAGE the file has the old state. */
CGN_RC batches_update(struct batches *s, struct batch *b, struct cgn_err *err);
/* As batches_update, in memory only: for counts, which the journal has, and what it waits for. */
void batches_count(struct batches *s, const struct batch *b);
/* The batch's state now; BATCH_STATUSES: it is gone. */
enum batch_status batches_status(struct batches *s, const char *id);
/* Forget the batches that ended long ago. */
void batches_sweep(struct batches *s, uint64_t now_s);
void batches_path(const struct batches *s, const char *id, const char *kind, char out[PATH_MAX]);
