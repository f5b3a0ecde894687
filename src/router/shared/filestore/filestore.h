/* SPDX-License-Identifier: Apache-2.0 */
/* filestore: the files of /v1/files. A file is its bytes, FOLDER/ID.data or an object of a bucket (objects.h), and a sealed
 * description, FOLDER/ID.meta, which is written last: a file without one never existed, and is removed at the next start. A
 * file belongs to a tenant, and does not exist for others.
 *
 * Any thread may call; all functions may wait for the disk or the bucket, so none is called on a loop that serves clients. With a
 * bucket those that reach contents fail as objects.h says too. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "policy/who/quota/quota.h"

struct objects;

#define FILESTORE_ID_MAX     40
#define FILESTORE_NAME_MAX   256
#define FILESTORE_TENANT_MAX 128
#define FILESTORE_FORM_MAX   ((uint64_t)65536) /* Bytes of an upload beside the file: of the form around it. */

struct filestore;
struct filestore_cfg {
	const char *folder;  /* Made if it is missing. */
	uint64_t max_tenant; /* Bytes of all files of a tenant. */
	uint32_t max_files;  /* Files of all tenants. */
	uint64_t keep_s;     /* Seconds from a file's creation to its end. */
	struct objects *
		objects; /* Contents of new files go there; owned by the store once it is open. NULL: they stay in |folder|. */
};
/* A file. |offset|: place of the first byte in ID.data. |remote|: the bytes are an object. Times are Unix seconds. */
struct filestore_file {
	char id[FILESTORE_ID_MAX];
	char tenant[FILESTORE_TENANT_MAX + 1];
	char name[FILESTORE_NAME_MAX + 1];
	char purpose[16];
	uint64_t offset, bytes, created, expires;
	bool remote;
	uint64_t again; /* Not in the description: a deletion failed, and is not tried before. */
};

/* Read the descriptions, and remove the rest of uploads that did not end. A description that cannot be read is logged
 * and left alone, with its bytes. */
CGN_RC filestore_open(const struct filestore_cfg *cfg, struct filestore **out, struct cgn_err *err);
void filestore_close(struct filestore **take);
/* End the requests to the bucket, and refuse later ones: the program ends. Any thread. */
void filestore_stop(struct filestore *s);

/* ---- writing ---- */
struct filestore_upload;
/* Begin a file of |tenant| with the id |id|; NULL: a new one. CGN_OVERLOADED: the tenant has max_tenant bytes already,
 * or has its share of max_files (AUTH_NO_TENANT: all), or there are max_files, uploads that run included (asked only for a new id), as
 * filestore_share says; CGN_STORAGE. */
CGN_RC filestore_begin(struct filestore *s, struct cgn_str tenant, const char *id,
	struct filestore_upload **out, struct cgn_err *err);
/* Return the tenant's number of files, running uploads and places, and its limit. */
struct quota_told filestore_share(struct filestore *s, struct cgn_str tenant);
/* Hold places for |n| files that are going to be written under |ids|: each counts as a file of the tenant until
 * filestore_commit makes the file, or filestore_give. OVERLOADED: as |told| says, and none is held. */
CGN_RC filestore_reserve(struct filestore *s, struct cgn_str tenant, const char *const ids[], size_t n,
	struct quota_told *told, struct cgn_err *err);
/* Hold the place of |id| that was granted before the program's start, whatever the tenant has now, unless it is a file. */
void filestore_reserve_again(struct filestore *s, struct cgn_str tenant, const char *id);
void filestore_give(struct filestore *s, const char *id); /* Fine if there is no such place. */
/* CGN_OVERLOADED: with these bytes the tenant's files, and its uploads that run, would have more than max_tenant;
 * CGN_STORAGE. */
CGN_RC filestore_add(struct filestore_upload *u, struct cgn_str bytes, struct cgn_err *err);
/* Map the written bytes. Borrowed until filestore_cancel or filestore_commit. */
CGN_RC filestore_map(struct filestore_upload *u, struct cgn_str *out, struct cgn_err *err);
/* Make the file: |f| has name, purpose, offset and bytes; the rest is filled in. It is on the medium afterwards. The
 * upload is gone, success or failure. CGN_OVERLOADED, CGN_STORAGE. */
CGN_RC filestore_commit(struct filestore_upload **take, struct filestore_file *f, struct cgn_err *err);
void filestore_cancel(struct filestore_upload **take); /* NULL-safe. Removes the written bytes. */

/* ---- reading ---- */
bool filestore_find(struct filestore *s, struct cgn_str tenant, struct cgn_str id,
	struct filestore_file *out);
/* Copy at most |max| files of |tenant|, the newest first (|oldest_first|: the other way), beginning behind the file
 * |after| (empty: at the first one) and only those with |purpose| (empty: any); returns how many. */
size_t filestore_list(struct filestore *s, struct cgn_str tenant, struct cgn_str purpose,
	struct cgn_str after, bool oldest_first, struct filestore_file *out, size_t max);
/* Open the file's bytes, which begin at its offset, or at 0 if it is remote: they are fetched into a file without a name. The
 * caller closes the descriptor. CGN_NOT_FOUND, CGN_STORAGE. */
CGN_RC filestore_read(struct filestore *s, const struct filestore_file *f, int *fd, struct cgn_err *err);
/* Append |n| bytes of the file from its byte |at| on to |out|. |*fd|, -1 at first, keeps a local file open between calls. */
CGN_RC filestore_piece(struct filestore *s, const struct filestore_file *f, int *fd, uint64_t at, size_t n,
	struct cgn_buf *out, struct cgn_err *err);
/* CGN_NOT_FOUND: the tenant has no such file; CGN_STORAGE: its bytes cannot be removed, and the file stays. */
CGN_RC filestore_delete(struct filestore *s, struct cgn_str tenant, struct cgn_str id, struct cgn_err *err);
/* Remove the files whose time is over. A file that cannot be removed holds up no other one: it is tried again after ten
 * minutes. */
void filestore_sweep(struct filestore *s, uint64_t now_s);
/* Make a new id: |prefix| and 24 random digits. */
void filestore_id_make(const char *prefix, char out[FILESTORE_ID_MAX]);
