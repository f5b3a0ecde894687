/* SPDX-License-Identifier: Apache-2.0 */
/* usageopen: tokens, money and energy of the requests under way, in a file beside the journal. Each request has a place in it, which
 * is overwritten: the file is as large as the most requests that were under way at once, at most USAGE_OPEN_MOST places of
 * USAGE_OPEN_PLACE bytes. A record has the id of its request; the row of its end has the same id in the journal, and the place
 * is cleared once that row is written. */
#pragma once
#include "base/core/buf.h"

#define USAGE_OPEN_MOST  16384
#define USAGE_OPEN_PLACE 512 /* Requests with longer names have no record. */

struct usage_open;
/* |path|: of the file; its folder may be missing. */
struct usage_open *usage_open_new(const char *path);
void usage_open_free(struct usage_open **take); /* NULL-safe. Removes the file: no request is under way. */

/* A place for one request; zeroed: none. */
struct usage_place {
	uint64_t id;
	uint32_t number;
};
/* Replace the request's record by |row|, which ends with a line end. The first call takes a place, if one is free. Any thread. */
void usage_open_put(struct usage_open *o, struct usage_place *p, struct cgn_str row);
/* The request has ended, and its row is in the journal, or it has none: the place is cleared later. Any thread. */
void usage_open_end(struct usage_open *o, struct usage_place *p);

/* On the loop: return how many places of requests that ended may be cleared once the journal's lines of now are written; clear
 * that many; write the records that changed. Returns false if that failed: errno tells why. */
size_t usage_open_ended(struct usage_open *o);
void usage_open_clear(struct usage_open *o, size_t n);
bool usage_open_write(struct usage_open *o);

/* Give |record| each record of the file: its id, and its row without the line end. Ids that are given out later are above all of
 * them, and above |above|. Call once, before the others. */
void usage_open_read(struct usage_open *o, uint64_t above,
	void (*record)(void *arg, uint64_t id, struct cgn_str row), void *arg);
/* The records that were read are in the journal: empty the file. */
void usage_open_empty(struct usage_open *o);
