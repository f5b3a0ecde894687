/* SPDX-License-Identifier: Apache-2.0 */
/* install: the files of an installation, the record of written files, and how both are compared with a
 * machine. A path is absolute; --root DIR puts DIR before it. All functions: the one thread of cgn-ctl. */
#pragma once
#include "ctl/ctl.h"

#define INSTALL_MAX_FILES  256
#define INSTALL_FILE_LIMIT ((size_t)1 << 20)                   /* Bytes of one file. */
#define INSTALL_RECORD     "/var/lib/cognitora/install.sha256" /* The record of a machine. */
#define INSTALL_PKI        "/etc/cognitora/pki"

/* bundle.c: the files of deploy/ that this program has in itself, by their path there. */
struct install_source {
	const char *name, *text;
};
/* Return the next file after |before| (NULL: the first) whose name begins with |folder|; NULL: there is none. */
const struct install_source *install_source_next(const char *folder, const struct install_source *before);
/* Return the text of a file, which must be there. */
const char *install_source_text(const char *name);

struct install_file {
	const char *path;
	bool program;        /* The file is executable. */
	struct cgn_buf text; /* Owned by the plan. */
};
struct install_plan {
	struct install_file files[INSTALL_MAX_FILES];
	size_t n;
};
/* Render the files of a machine that has all programs. CGN_INVALID: a flag has a value that the settings refuse. */
CGN_RC install_render_single(const struct ctl_args *a, struct install_plan *out, struct cgn_err *err);
/* Add a file and return its text, which is valid until the plan ends. */
struct cgn_buf *install_plan_add(struct install_plan *p, const char *path);
void install_plan_fini(struct install_plan *p);

/* The record: "SHA256  PATH" lines, as sha256sum writes and checks them. */
struct install_record {
	struct {
		char sha256[65];
		char path[512];
	} rows[INSTALL_MAX_FILES];
	size_t n;
	const char *file; /* The record's path below the root. */
};
/* Read the text of a record; |out|->file is set. CGN_INVALID: a line is not one of a record. */
CGN_RC install_record_parse(struct cgn_str text, struct install_record *out, struct cgn_err *err);
void install_record_text(const struct install_record *r, struct cgn_buf *out);
/* Return the recorded sum of a path; NULL: the path is not in the record. */
const char *install_record_find(const struct install_record *r, const char *path);
/* Note a sum. CGN_INVALID: the record has no room. */
CGN_RC install_record_set(struct install_record *r, const char *path, const char *sha256,
	struct cgn_err *err);
void install_record_drop(struct install_record *r, const char *path);
/* Read the record |file| below |root|. No record: it is empty. CGN_INVALID: a line is not one of a record. */
CGN_RC install_record_read(const char *root, const char *file, struct install_record *out,
	struct cgn_err *err);
/* Write the record; an empty one is removed. */
CGN_RC install_record_write(const char *root, const struct install_record *r, struct cgn_err *err);
/* Note the sum that the file has now. */
CGN_RC install_record_note(struct install_record *r, const char *root, const char *path, struct cgn_err *err);

enum install_state {
	INSTALL_ABSENT,
	INSTALL_SAME,   /* The file has the text already. */
	INSTALL_OURS,   /* The file is as it was recorded, and the text is another one. */
	INSTALL_CHANGED /* The file was changed, or was not installed by cgn-ctl. */
};
/* |now|: the sum of the file, NULL where there is none; |noted|: the recorded one, or NULL. */
enum install_state install_state_of(const char *now, const char *want, const char *noted);
void install_sum(struct cgn_str bytes, char out[65]);
/* Compare the file with its text and the record. */
CGN_RC install_compare(const char *root, const struct install_file *f, const struct install_record *r,
	enum install_state *out, struct cgn_err *err);
/* Write |root| and |path| together into |out|, which has PATH_MAX bytes. */
CGN_RC install_place(const char *root, const char *path, char *out, struct cgn_err *err);
/* Write the place of a file of deploy/systemd, such as "cgn-router.service", and return its text. */
const char *install_unit(const char *name, char *place, size_t cap);
/* Append the drop-in that gives the unit the certificate |name|.pem and its key, as |as|.pem and |as|.key. */
void install_credentials(const char *name, const char *as, struct cgn_buf *out);
/* Print the difference between the file |old| (NULL: there is none) and |text|. */
CGN_RC install_diff(const char *path, const char *old, struct cgn_str text, struct cgn_err *err);

/* apply.c: an installation that runs. Too large for the stack. */
struct install_job {
	const char *root;
	bool apply;     /* False: files are only shown. */
	bool few_words; /* Show no texts of files, and paths with the root. */
	struct install_record record;
	struct install_plan plan;
	unsigned changes, kept;
};
/* Read the record. */
CGN_RC install_job_begin(struct install_job *r, const char *record, struct cgn_err *err);
/* Write or show each file of the plan that the root lacks, or has as it was recorded. Others are kept and named. */
CGN_RC install_job_files(struct install_job *r, struct cgn_err *err);
/* Write the record, also after a failure |rc|, and free the plan. Returns |rc|, or why the record cannot be written. */
CGN_RC install_job_end(struct install_job *r, cgn_rc rc, struct cgn_err *err);

/* pool.c: the ModelPool of install kubernetes, as the API server has it. */
#define INSTALL_MANAGER "cgn-ctl" /* Field manager of the manifests. */
struct install_pool {
	bool there, autoscaled; /* autoscaled: spec.autoscaling is set. */
	bool ours;              /* The manifests own spec.replicas. */
	char owner[128];        /* Another field manager that owns them; empty: none. */
	uint64_t replicas;
};
/* Read the output of kubectl get -o json --show-managed-fields; an empty text: the pool is not there.
 * CGN_INVALID: the text is not JSON. */
CGN_RC install_pool_read(struct cgn_str text, struct install_pool *out, struct cgn_err *err);
/* Decide whether the manifest of ModelPool |name| names its replicas, and how many. |wanted|: --replicas; NULL: it is not given.
 * CGN_INVALID, CGN_CONFLICT: another one sets them. */
CGN_RC install_pool_replicas(const struct install_pool *p, const char *name, const uint64_t *wanted,
	bool *write, uint64_t *replicas, struct cgn_err *err);
