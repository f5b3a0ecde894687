/* SPDX-License-Identifier: Apache-2.0 */
/* filestore, inside: the table, and the descriptions on the disk. */
#pragma once
#include <limits.h>
#include <pthread.h>

#include "base/core/list.h"
#include "router/shared/filestore/filestore.h"

#define FILESTORE_TAG      0x66730e01U
#define FILESTORE_META_MAX ((size_t)8192)

struct filestore {
	uint32_t tag;
	pthread_mutex_t lock;
	struct filestore_cfg cfg;
	char *folder;
	struct filestore_file *files; /* The oldest first. */
	size_t n, cap;
	struct cgn_link uploads; /* Uploads of clients that are not files yet. */
	size_t n_uploads;
	struct cgn_link places; /* For files that are going to be written (places.c). */
	size_t n_places;
};

struct filestore_upload {
	struct filestore *store;
	char id[FILESTORE_ID_MAX], tenant[FILESTORE_TENANT_MAX + 1];
	int fd;
	uint64_t bytes;
	void *map;
	/* In store->uploads, with |bytes| booked until then; both belong to the store's lock. Not linked: a result, which no
	 * limit holds up. */
	struct cgn_link link;
	uint64_t booked;
};

void filestore_path(const struct filestore *s, const char *id, const char *kind, char out[PATH_MAX]);
/* ---- with the lock held ---- */
struct filestore_file *filestore_row_find(struct filestore *s, struct cgn_str id);
void filestore_row_add(struct filestore *s, const struct filestore_file *f);
/* Return the bytes of the tenant's files, and those of its uploads that run. */
uint64_t filestore_tenant_bytes(const struct filestore *s, struct cgn_str tenant);

/* May the tenant have |want| files more? OVERLOADED: as |told| says. */
CGN_RC filestore_share_check(const struct filestore *s, struct cgn_str tenant, size_t want,
	struct quota_told *told, struct cgn_err *err);
void filestore_place_drop(struct filestore *s, const char *id); /* Fine if there is none. */
void filestore_places_free(struct filestore *s);

/* Read the text of ID.meta. INVALID: it is damaged, or of a later version. */
CGN_RC filestore_meta_read(struct cgn_str text, struct filestore_file *out, struct cgn_err *err);
