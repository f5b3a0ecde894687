/* SPDX-License-Identifier: Apache-2.0 */
/* pull, inside: the files of a model, their sources, and their progress. */
/* model, the room: the verbs of models: their files, and where they are loaded. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>

#include "ctl/ctl.h"
#include "io/wire/fetch/fetch.h"
#include "policy/node/modelsource/modelsource.h"

#define PULL_PATH     4096
#define PULL_PARALLEL 32

struct pull {
	const struct ctl_args *args;
	const char *from; /* The source as it was typed. */
	struct modelsource source;
	char to[PULL_PATH - 2048]; /* The folder. */
	char endpoint[1024];       /* HUB, OCI, S3: without '/' at the end. */
	char commit[256];          /* HUB: the commit that the revision is now. */
	char authorization[8192];  /* "Authorization: ..." for the source; empty: none. */
	char region[64], key[512]; /* S3; |key| empty: not signed. */
	const char *ca_file, *sha256;
	uint64_t parallel, retries;
	struct cgn_arena arena;
	struct modelsource_list list;
	struct pull_done {
		char sha256[65];
		uint64_t size;
		bool kept; /* The file was there already. */
	} *done;           /* An entry for each file of |list|. */
	/* Shared by the threads. */
	_Atomic uint64_t bytes; /* On disk now, of all files. */
	_Atomic size_t next, ended;
	_Atomic bool stop;
	pthread_mutex_t lock;  /* Guards |failed|. */
	struct cgn_err failed; /* The first failure; code CGN_FINE: none. */
};

/* sources.c: fill |list|, and the addresses and keys that files need. */
CGN_RC pull_list(struct pull *p, struct cgn_err *err);
/* Write the file's address. */
void pull_url(const struct pull *p, const struct modelsource_file *f, struct cgn_buf *out);
/* Fill the fields that all requests have in common. */
void pull_request(const struct pull *p, const char *url, struct fetch_request *rq);
/* Name a refusal by its status: the file that was asked for, and which key to set. */
CGN_RC pull_refusal(const struct pull *p, const char *what, int status, struct cgn_err *err);

/* file.c: bring file |i| into the folder; |p->done[i]| gets its name, size and checksum. Any thread. */
CGN_RC pull_file(struct pull *p, struct fetch *f, size_t i, struct cgn_err *err);
/* Hash the file at |path|, of |*size| bytes. */
CGN_RC pull_hash(const char *path, char sha256[65], uint64_t *size, struct cgn_err *err);

/* record.c: the folder's record of pulled files, pull.json. */
#define PULL_RECORD ".cgn-pull.json"
CGN_RC pull_record_write(const struct pull *p, struct cgn_err *err);
/* Return the sum that an earlier pull recorded for |path|, if the file still has that size; empty: none. */
void pull_record_find(const struct pull *p, const char *path, uint64_t size, char sha256[65]);
/* Compare all files of the record with those in the folder; write each difference to |out|. */
CGN_RC pull_record_check(const char *folder, struct cgn_buf *out, size_t *files, size_t *wrong,
	struct cgn_err *err);
