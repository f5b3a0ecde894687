/* SPDX-License-Identifier: Apache-2.0 */
/* linefile: a file to which many threads append lines. A thread of its own writes them in batches, so that no
 * caller waits for a disk. Memory: twice LINEFILE_WAITING. A file with a bound is rotated: PATH becomes PATH.1, and so
 * on, and the oldest one goes. */
#pragma once
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

#define LINEFILE_WAITING \
	((size_t)1 << 20) /* Bytes of lines that wait for the disk; further lines are dropped. */

struct linefile;
/* Open the file for appending, or create it with mode 0640, and start the thread. The message of a failure names
 * the path. */
CGN_RC linefile_open(const char *path, struct linefile **out, struct cgn_err *err);
/* The same, with a bound: |files| files (at least 1) of |size| bytes each, and LINEFILE_WAITING more. */
CGN_RC linefile_open_bounded(const char *path, uint64_t size, unsigned files, struct linefile **out,
	struct cgn_err *err);
/* How lines depend on what the file has already. The writing thread calls both; a line that the disk refuses leaves no
 * part of itself in the file, and |kept| is not called for it. Every batch is written to the device before the next. */
struct linefile_seal {
	void (*seal)(void *user, struct cgn_str line, struct cgn_buf *out); /* Appends the lines to write. */
	void (*kept)(void *user, struct cgn_str sealed);
	void *user;
};
/* As linefile_open_bounded; 0 bytes: without a bound. */
CGN_RC linefile_open_sealed(const char *path, uint64_t size, unsigned files, const struct linefile_seal *seal,
	struct linefile **out, struct cgn_err *err);
/* Write waiting lines, end the thread, and close. */
void linefile_close(struct linefile **take);
/* Append |line|, which ends with a newline. Any thread; never waits for the disk. */
void linefile_add(struct linefile *f, struct cgn_str line);
/* Use the file at |path| for all later lines: after a rotation it is a new file. On failure the old one stays.
 * Not on two threads at once. */
CGN_RC linefile_reopen(struct linefile *f, const char *path, struct cgn_err *err);
/* Return how many lines were dropped so far: too many waited, or a write failed. Any thread. */
uint64_t linefile_dropped(struct linefile *f);
