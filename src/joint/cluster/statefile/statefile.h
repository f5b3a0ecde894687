/* SPDX-License-Identifier: Apache-2.0 */
/* statefile: a file of cluster.state_dir that is replaced as a whole, in the background. Belongs to one loop. */
#pragma once
#include <sys/types.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "io/os/loop/loop.h"

struct statefile;
/* |what| names the content in the log, such as "budgets"; it is borrowed. */
struct statefile *statefile_open(struct cgn_loop *l, const char *path, const char *what);
/* Append the file's content to |out|; false: there is no file, or it cannot be read, which is logged. */
bool statefile_read(const struct statefile *f, size_t limit, struct cgn_buf *out);
/* The content is not what it should be: rename the file to its name with ".bad" behind it (".bad-1" and so on if that is
 * taken), and log that. */
void statefile_set_aside(const struct statefile *f, const char *why);
const char *statefile_path(const struct statefile *f);
/* Is a write in progress? Then statefile_write and statefile_change must not be called. */
bool statefile_is_busy(const struct statefile *f);
/* Did the last write fail? */
bool statefile_has_failed(const struct statefile *f);
/* Replace the file by |*take| on the thread pool. A failure is logged, once until a write succeeds. The folder is made
 * if it is missing. */
void statefile_write(struct statefile *f, struct cgn_buf *take);
/* The outcome of a change. */
struct statefile_result {
	struct cgn_err err;  /* CGN_FINE: the change is on the disk. */
	struct cgn_str text; /* The new content; empty after a removal. */
	/* After a failure, what the disk has: a change that fails may be there already, because the folder is synced last. */
	cgn_rc read;
	struct cgn_err why; /* Why the read failed. */
	struct cgn_buf present;
};
struct statefile_change {
	struct cgn_buf text; /* Taken. */
	bool remove;         /* Remove the file, and ignore |text|. */
	mode_t mode;
	size_t limit; /* Bytes to read after a failure. */
	/* The change is over; |r| is borrowed. Not called after statefile_close. NULL: a failure is logged. */
	void (*done)(void *user, const struct statefile_result *r);
	void *user;
};
/* Replace or remove the file on the thread pool. */
void statefile_change(struct statefile *f, const struct statefile_change *take);
/* End; with |last| (NULL: nothing) the file is replaced first, after a write that is in progress. Nothing is written
 * afterwards. */
void statefile_close(struct statefile **take, const struct cgn_buf *last);
