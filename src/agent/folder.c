/* SPDX-License-Identifier: Apache-2.0 */
/* folder: an engine's slot_dir. It is one engine's alone, by a lock that ends with the agent; and nothing
 * stays in it that nobody waits for, however late the engine writes it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/slotmgr.h"
#include "base/log/log.h"

#define FILE_PREFIX  "cgn-slot-"
#define SWEEP_EVERY  (5 * CGN_SEC)
#define NUMBERS_A_MS 1000 /* more than are ever used */

/* One round, on the pool. */
struct sweep {
	struct keep *keep; /* NULL: it was left meanwhile */
	int dir;           /* its own, so that the lock lasts until it is done */
	uint64_t least;    /* files of ours from this number on may still be waited for */
	uint64_t files, bytes;
};

/* ---- files ---- */

void slot_file_begin(struct keep *k, const char *kind, struct slot_file *f)
{
	f->number = ++k->files;
	int n = snprintf(f->path, sizeof f->path, "%s/", k->dir);
	(void)snprintf(f->path + n, sizeof f->path - (size_t)n, FILE_PREFIX "%d-%s-%llu", (int)getpid(), kind,
		(unsigned long long)f->number);
	f->name = f->path + n;
	cgn_list_push(&k->files_now, &f->link);
}

void slot_file_end(struct slot_file *f)
{
	cgn_list_drop(&f->link);
}

static uint64_t least_of(const struct keep *k)
{
	uint64_t least = k->files + 1;
	cgn_list_each (l, &k->files_now) {
		const struct slot_file *f = CGN_CONTAINER(l, struct slot_file, link);
		least = f->number < least ? f->number : least;
	}
	return least;
}

/* ---- what nobody waits for ---- */

static bool is_left_over(const char *name, uint64_t least)
{
	int pid = 0;
	unsigned long long number = 0;
	if (strncmp(name, FILE_PREFIX, sizeof FILE_PREFIX - 1) != 0)
		return false;
	if (sscanf(name, FILE_PREFIX "%d-%*[a-z]-%llu", &pid, &number) != 2 || pid != (int)getpid())
		return true; /* of an agent before this one */
	return number < least;
}

static void sweep_folder(struct sweep *w)
{
	int fd = openat(w->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
	for (const struct dirent *f; d != NULL && (f = readdir(d)) != NULL;) {
		struct stat st;
		if (!is_left_over(f->d_name, w->least))
			continue;
		bool seen = fstatat(fd, f->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0;
		if (unlinkat(fd, f->d_name, 0) != 0)
			continue;
		w->files++;
		w->bytes += seen && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
	}
	if (d != NULL)
		(void)closedir(d);
	else if (fd >= 0)
		(void)close(fd);
}

static void tell(const struct keep *k, const struct sweep *w)
{
	if (w->files > 0)
		cgn_log(INFO, "slot.swept", F_STR("engine", k->e->name), F_STR("dir", k->dir),
			F_U64("files", w->files), F_U64("bytes", w->bytes));
}

static void sweep_work(void *arg)
{
	sweep_folder(arg);
}

static void swept(void *arg)
{
	struct sweep *w = arg;
	struct keep *k = w->keep;
	(void)close(w->dir);
	if (k != NULL) {
		CGN_LIVE(k, SLOTMGR_TAG);
		tell(k, w);
		k->sweep = NULL;
		cgn_timer_set(&k->sweep_timer, SWEEP_EVERY);
	}
	free(w);
}

static void on_sweep(struct cgn_timer *t)
{
	struct keep *k = CGN_CONTAINER(t, struct keep, sweep_timer);
	CGN_LIVE(k, SLOTMGR_TAG);
	struct sweep *w = malloc(sizeof *w);
	if (w != NULL)
		*w = (struct sweep){.keep = k,
			.dir = fcntl(k->lock, F_DUPFD_CLOEXEC, 0),
			.least = least_of(k)};
	if (w != NULL && w->dir >= 0 && cgn_ok(cgn_loop_work(k->e->agent->loop, sweep_work, swept, w))) {
		k->sweep = w;
		return;
	}
	if (w != NULL && w->dir >= 0)
		(void)close(w->dir);
	free(w);
	cgn_timer_set(t, SWEEP_EVERY);
}

/* ---- whose it is ---- */

static CGN_RC fail_folder(const struct keep *k, struct cgn_err *err)
{
	int e = errno;
	if (e == EWOULDBLOCK)
		return CGN_FAIL(err, STORAGE,
			"engine.slot_dir %.200s is another engine's, of this agent or of another one on this machine, which would remove each other's files; give each its own",
			k->dir);
	return CGN_FAIL(err, STORAGE, "engine.slot_dir %.200s can't be used: %s", k->dir, strerror(e));
}

CGN_RC folder_take(struct keep *k, struct cgn_err *err)
{
	if (k->lock >= 0)
		return CGN_OK;
	int fd = open(k->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0) {
		cgn_rc rc = fail_folder(k, err);
		if (fd >= 0)
			(void)close(fd);
		return rc;
	}
	k->lock = fd;
	/* In a container each agent has the same pid: what the one before left there, or its engine writes
	 * late, has a smaller number. */
	k->files = cgn_clock_wall_ms() * NUMBERS_A_MS;
	/* What an agent that was killed left behind goes before anything new comes. */
	struct sweep first = {.dir = fd, .least = UINT64_MAX};
	sweep_folder(&first);
	tell(k, &first);
	cgn_timer_init(&k->sweep_timer, k->e->agent->loop, on_sweep);
	cgn_timer_set(&k->sweep_timer, SWEEP_EVERY);
	return CGN_OK;
}

void folder_leave(struct keep *k)
{
	if (k->lock < 0)
		return;
	cgn_timer_cancel(&k->sweep_timer);
	if (k->sweep != NULL)
		k->sweep->keep = NULL;
	k->sweep = NULL;
	(void)close(k->lock);
	k->lock = -1;
}
