/* SPDX-License-Identifier: Apache-2.0 */
/* The health of the disk: whether it takes writes, why not, and how it comes back. A database that refuses
 * writes is reopened once a small file can be written beside it and the file system has room; later and later
 * when that does not help. */
#include "joint/kv/kvdisk/kvdisk_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#define TRY_EVERY  1000U  /* ms */
#define TRY_RARELY 64000U /* ms */
#define PROBE      4096U

void health_refused(struct kvdisk *d, const char *why)
{
	struct kvdisk_health *h = &d->health;
	(void)pthread_mutex_lock(&h->lock);
	h->refusing = true;
	(void)snprintf(h->why, sizeof h->why, "%s", why);
	(void)pthread_mutex_unlock(&h->lock);
}

static void health_recovered(struct kvdisk *d)
{
	struct kvdisk_health *h = &d->health;
	(void)pthread_mutex_lock(&h->lock);
	h->refusing = false;
	(void)pthread_mutex_unlock(&h->lock);
}

bool health_writable(struct kvdisk *d, struct cgn_err *err)
{
	char why[DB_WHY];
	if (!db_stuck(d->index) && !db_stuck(d->small))
		return true;
	(void)db_why(db_stuck(d->index) ? d->index : d->small, why);
	health_refused(d, why);
	(void)CGN_FAIL(err, STORAGE, "the disk takes no writes: %.120s", why);
	return false;
}

bool health_stats(struct kvdisk *d, char why[KVDISK_WHY])
{
	struct kvdisk_health *h = &d->health;
	(void)pthread_mutex_lock(&h->lock);
	bool refusing = h->refusing;
	memcpy(why, h->why, KVDISK_WHY);
	(void)pthread_mutex_unlock(&h->lock);
	return refusing;
}

/* Whether a file beside |path| can be written and synced. */
static bool health_probe(const char *path)
{
	static const char bytes[PROBE];
	char file[PATH_MAX];
	if (snprintf(file, sizeof file, "%s.probe", path) >= (int)sizeof file)
		return false;
	int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
	if (fd < 0)
		return false;
	bool good = write(fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes && fdatasync(fd) == 0;
	close(fd);
	return unlink(file) == 0 && good;
}

static CGN_RC put_small_aside(void *user, const char *path, struct cgn_err *err)
{
	return db_put_aside(user, path, err);
}

static void db_reopen(struct kvdisk *d, struct db *db)
{
	char why[DB_WHY];
	bool damaged = db_why(db, why);
	if (damaged && db == d->index) /* the next start rebuilds it */
		return;
	if (cgn_ok(db_again(db, damaged ? put_small_aside : NULL, d, NULL)))
		atomic_fetch_add(&d->counts.reopened, 1);
}

static bool health_has_room(struct kvdisk *d)
{
	uint64_t is = 0, wants = db_reserve(d->index) + db_reserve(d->small);
	return cgn_ok(dir_free_bytes(d->dir, &is, NULL)) && is >= wants;
}

/* Retry now, or not yet. The interval doubles while databases get stuck again and again. */
static bool health_is_time(struct kvdisk *d)
{
	struct kvdisk_health *h = &d->health;
	uint64_t now = d->time.boot_ms();
	if (now < h->next_ms)
		return false;
	if (cgn_since(now, h->next_ms) > TRY_RARELY || h->pause_ms == 0)
		h->pause_ms = TRY_EVERY;
	else if (h->pause_ms < TRY_RARELY)
		h->pause_ms *= 2;
	h->next_ms = now + h->pause_ms;
	return true;
}

void health_retry(struct kvdisk *d)
{
	char why[KVDISK_WHY];
	bool stuck = db_stuck(d->index) || db_stuck(d->small);
	if (stuck)
		(void)health_writable(d, NULL); /* says why */
	if (!health_stats(d, why) || !health_has_room(d) || !health_probe(d->index_path) ||
		!health_probe(d->small_path))
		return;
	if (stuck && !health_is_time(d))
		return;
	if (db_stuck(d->index))
		db_reopen(d, d->index);
	if (db_stuck(d->small))
		db_reopen(d, d->small);
	if (!db_stuck(d->index) && !db_stuck(d->small))
		health_recovered(d);
}
