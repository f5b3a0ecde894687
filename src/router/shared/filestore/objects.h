/* SPDX-License-Identifier: Apache-2.0 */
/* objects: the contents of files in a bucket of an S3-compatible server. Blocking, with at most OBJECTS_TRIES tries of
 * each request; any thread but those of loops. Contents are streamed: a request holds 64 KiB of one at most, a ranged read what it
 * asked for. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

#define OBJECTS_TRIES 3
#define OBJECTS_PART \
	((uint64_t)64 << 20) /* Bytes of a part; a longer content is sent as a multipart upload. */

struct objects;
struct objects_cfg {
	const char *endpoint; /* http[s]://HOST[:PORT], without '/' at the end. */
	const char *bucket, *region;
	const char *prefix;           /* Keys begin with it; may be "". */
	const char *credentials_file; /* KEY-ID:SECRET on its first line. */
	const char *ca_file;          /* NULL: the system's. */
};
/* Read the credentials, and load libcurl. UNSUPPORTED: it is not installed; INVALID: the file has no KEY-ID:SECRET; or as disk_read_file. */
CGN_RC objects_open(const struct objects_cfg *cfg, struct objects **out, struct cgn_err *err);
void objects_close(struct objects **take);
/* End the requests that run, and all later ones, with CGN_CANCELLED: the program ends. Any thread. */
void objects_stop(struct objects *o);

/* All fail with UNAVAILABLE (no answer, or 5xx and 429 after all tries), STORAGE (refused: the message has the server's code), TLS or
 * CANCELLED. |id| has letters, digits, '-' and '_' only. */

/* Store |bytes| bytes of |fd| from |at| on under |id|; earlier bytes are replaced. */
CGN_RC objects_put(struct objects *o, const char *id, int fd, uint64_t at, uint64_t bytes,
	struct cgn_err *err);
/* Append |n| bytes from |at| on to |out|. NOT_FOUND: there is no such object; STORAGE: it is shorter. */
CGN_RC objects_read(struct objects *o, const char *id, uint64_t at, size_t n, struct cgn_buf *out,
	struct cgn_err *err);
/* Write the whole object, of |bytes| bytes, to |fd|. NOT_FOUND; STORAGE: it is shorter, or |fd| takes no more. */
CGN_RC objects_get(struct objects *o, const char *id, uint64_t bytes, int fd, struct cgn_err *err);
CGN_RC objects_delete(struct objects *o, const char *id, struct cgn_err *err); /* Fine if there is none. */
