/* SPDX-License-Identifier: Apache-2.0 */
/* A place begins with a line: a checksum of the rest in 16 hexadecimal digits, the id, and the row. Zeros: it is free. */
#include "router/request/account/usageopen.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/core/err.h"
#include "io/os/disk/disk.h"
#include "router/request/account/usagejournal.h"

#define OPEN_TAG  0x64ac0512U
#define SUM       16
#define FILE_MOST ((size_t)USAGE_OPEN_MOST * USAGE_OPEN_PLACE)

struct usage_open {
	uint32_t tag;
	pthread_mutex_t lock;
	char *path;
	int fd; /* -1: not open. */
	/* Under |lock|. */
	char *places; /* |cap| places. */
	char *dirty;  /* 1: the file has not what the place has. */
	size_t cap;
	uint32_t *free_places;
	size_t n_free;
	uint32_t *ended;
	size_t n_ended;
	uint64_t last_id;
};

struct usage_open *usage_open_new(const char *path)
{
	struct usage_open *o = CGN_NEW(struct usage_open);
	*o = (struct usage_open){.tag = OPEN_TAG, .path = cgn_str_dupz(cgn_str_of(path)), .fd = -1};
	(void)pthread_mutex_init(&o->lock, NULL);
	return o;
}

void usage_open_free(struct usage_open **take)
{
	struct usage_open *o = CGN_TAKE_LIVE(take, OPEN_TAG);
	if (o == NULL)
		return;
	if (o->fd >= 0)
		(void)close(o->fd);
	(void)unlink(o->path);
	(void)pthread_mutex_destroy(&o->lock);
	free(o->places);
	free(o->dirty);
	free(o->free_places);
	free(o->ended);
	free(o->path);
	o->tag = 0;
	free(o);
}

/* ---- places ---- */

/* Under the lock. The lowest places are taken first. */
static void places_grow(struct usage_open *o)
{
	size_t cap = o->cap > 0 ? 2 * o->cap : 64;
	o->places = CGN_GROWN(o->places, cap * USAGE_OPEN_PLACE);
	o->dirty = CGN_GROWN(o->dirty, cap);
	o->free_places = CGN_GROWN(o->free_places, cap);
	o->ended = CGN_GROWN(o->ended, cap);
	memset(o->places + o->cap * USAGE_OPEN_PLACE, 0, (cap - o->cap) * USAGE_OPEN_PLACE);
	memset(o->dirty + o->cap, 0, cap - o->cap);
	for (size_t i = cap; i-- > o->cap;)
		o->free_places[o->n_free++] = (uint32_t)i;
	o->cap = cap;
}

static bool place_take(struct usage_open *o, struct usage_place *p)
{
	if (o->n_free == 0 && o->cap < USAGE_OPEN_MOST)
		places_grow(o);
	if (o->n_free == 0)
		return false;
	*p = (struct usage_place){++o->last_id, o->free_places[--o->n_free]};
	return true;
}

static char *place_touch(struct usage_open *o, uint32_t number)
{
	o->dirty[number] = 1;
	return o->places + (size_t)number * USAGE_OPEN_PLACE;
}

static void record_write(char *place, uint64_t id, struct cgn_str row)
{
	char rest[USAGE_OPEN_PLACE];
	int n = snprintf(rest, sizeof rest, "%llu ", (unsigned long long)id);
	memcpy(rest + n, row.p, row.n);
	uint64_t sum = usage_journal_digest((struct cgn_str){rest, (size_t)n + row.n - 1});
	memset(place, 0, USAGE_OPEN_PLACE);
	(void)snprintf(place, SUM + 1, "%016llx", (unsigned long long)sum);
	memcpy(place + SUM, rest, (size_t)n + row.n);
}

void usage_open_put(struct usage_open *o, struct usage_place *p, struct cgn_str row)
{
	CGN_LIVE(o, OPEN_TAG);
	if (row.n == 0 || row.n > USAGE_OPEN_PLACE - SUM - 24) /* |row| and a long id. */
		return;
	(void)pthread_mutex_lock(&o->lock);
	if (p->id != 0 || place_take(o, p))
		record_write(place_touch(o, p->number), p->id, row);
	(void)pthread_mutex_unlock(&o->lock);
}

void usage_open_end(struct usage_open *o, struct usage_place *p)
{
	CGN_LIVE(o, OPEN_TAG);
	if (p->id == 0)
		return;
	(void)pthread_mutex_lock(&o->lock);
	o->ended[o->n_ended++] = p->number;
	(void)pthread_mutex_unlock(&o->lock);
	*p = (struct usage_place){0};
}

/* ---- the file ---- */

size_t usage_open_ended(struct usage_open *o)
{
	CGN_LIVE(o, OPEN_TAG);
	(void)pthread_mutex_lock(&o->lock);
	size_t n = o->n_ended;
	(void)pthread_mutex_unlock(&o->lock);
	return n;
}

void usage_open_clear(struct usage_open *o, size_t n)
{
	CGN_LIVE(o, OPEN_TAG);
	if (n == 0)
		return;
	(void)pthread_mutex_lock(&o->lock);
	for (size_t i = 0; i < n; i++) {
		memset(place_touch(o, o->ended[i]), 0, USAGE_OPEN_PLACE);
		o->free_places[o->n_free++] = o->ended[i];
	}
	o->n_ended -= n;
	memmove(o->ended, o->ended + n, o->n_ended * sizeof *o->ended);
	(void)pthread_mutex_unlock(&o->lock);
}

/* Copy the next run of dirty places, at |*from| or behind, and set |*from| to its first one. Return how many. */
static size_t run_take(struct usage_open *o, size_t *from, struct cgn_buf *out)
{
	size_t n = 0;
	(void)pthread_mutex_lock(&o->lock);
	const char *first = *from < o->cap ? memchr(o->dirty + *from, 1, o->cap - *from) : NULL;
	*from = first != NULL ? (size_t)(first - o->dirty) : o->cap;
	for (; *from + n < o->cap && o->dirty[*from + n] == 1; n++)
		o->dirty[*from + n] = 0;
	cgn_buf_add(out, o->places + *from * USAGE_OPEN_PLACE, n * USAGE_OPEN_PLACE);
	(void)pthread_mutex_unlock(&o->lock);
	return n;
}

static bool run_write(struct usage_open *o, size_t from, const struct cgn_buf *run)
{
	if (o->fd < 0)
		o->fd = open(o->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	return o->fd >= 0 && !run->bad &&
		pwrite(o->fd, run->p, run->n, (off_t)(from * USAGE_OPEN_PLACE)) == (ssize_t)run->n;
}

bool usage_open_write(struct usage_open *o)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf run = {0};
	bool fine = true;
	CGN_LIVE(o, OPEN_TAG);
	for (size_t from = 0, n; (n = run_take(o, &from, &run)) > 0; from += n) {
		fine = run_write(o, from, &run) && fine;
		run.n = 0;
	}
	return fine;
}

/* ---- reading ---- */

static bool record_read(struct cgn_str place, uint64_t *id, struct cgn_str *row)
{
	char sum[SUM + 1];
	const char *end = memchr(place.p, '\n', place.n);
	if (end == NULL || end - place.p < SUM + 1)
		return false;
	struct cgn_str rest = {place.p + SUM, (size_t)(end - place.p) - SUM};
	(void)snprintf(sum, sizeof sum, "%016llx", (unsigned long long)usage_journal_digest(rest));
	if (memcmp(place.p, sum, SUM) != 0 || !cgn_str_u64(cgn_str_split(&rest, ' '), id))
		return false;
	*row = rest;
	return true;
}

void usage_open_read(struct usage_open *o, uint64_t above,
	void (*record)(void *arg, uint64_t id, struct cgn_str row), void *arg)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf file = {0};
	struct cgn_str row;
	CGN_LIVE(o, OPEN_TAG);
	o->last_id = above;
	if (!cgn_ok(disk_read_file(o->path, FILE_MOST, &file, NULL)))
		return;
	for (size_t at = 0; at < file.n; at += USAGE_OPEN_PLACE) {
		uint64_t id = 0;
		size_t n = file.n - at < USAGE_OPEN_PLACE ? file.n - at : USAGE_OPEN_PLACE;
		if (!record_read((struct cgn_str){file.p + at, n}, &id, &row))
			continue;
		o->last_id = id > o->last_id ? id : o->last_id;
		record(arg, id, row);
	}
}

void usage_open_empty(struct usage_open *o)
{
	CGN_LIVE(o, OPEN_TAG);
	(void)unlink(o->path);
}
