/* SPDX-License-Identifier: Apache-2.0 */
/* disk: read and replace whole small files. Synchronous: for boot, reload and the command line, not for a
 * loop under load. */
#pragma once
#include <sys/types.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

/* Append the file's content to |out|; on failure |out| is unchanged. CGN_NOT_FOUND, CGN_FORBIDDEN,
 * CGN_TOO_LARGE beyond |limit| bytes, CGN_INVALID for a directory, else CGN_STORAGE or CGN_NO_MEMORY; the
 * message names the path. */
CGN_RC disk_read_file(const char *path, size_t limit, struct cgn_buf *out, struct cgn_err *err);

/* Replace the file: a reader sees the old content or the new one, also after a power cut. A temporary file
 * lies beside it meanwhile; a link is replaced, not followed. |mode| is applied exactly, whatever the umask.
 * CGN_NOT_FOUND (no such folder), CGN_FORBIDDEN, CGN_STORAGE. */
CGN_RC disk_write_file_atomic(const char *path, struct cgn_str bytes, mode_t mode, struct cgn_err *err);

/* Remove the file, also after a power cut. No file is success. CGN_FORBIDDEN, CGN_STORAGE. */
CGN_RC disk_remove_file(const char *path, struct cgn_err *err);

/* Lock the file, which is made if there is none, for as long as *out is open. CGN_CONFLICT names the file and the process
 * that has it; CGN_UNSUPPORTED: there are no locks there; else as disk_write_file_atomic. */
CGN_RC disk_lock_file(const char *path, int *out, struct cgn_err *err);

/* Make the folder and the missing folders above it. Existing folders keep their mode. */
CGN_RC disk_mkdirs(const char *path, mode_t mode, struct cgn_err *err);
