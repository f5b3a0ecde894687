/* SPDX-License-Identifier: Apache-2.0 */
/* folder: an engine's slot_dir. A lock, which ends with the agent, gives the folder to one engine alone. A sweep
 * removes each file that no save or restore uses, however late the engine writes the file. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log/log.h"
#include "joint/kv/slotmgr/slotmgr_priv.h"

#define FILE_PREFIX    "cgn-slot-"
#define SWEEP_EVERY    (5 * CGN_SEC)
#define NUMBERS_PER_MS 1000 /* More files than an agent creates in a millisecond */

/* A sweep on the thread pool. */
struct slot_folder_sweep {
	struct slotmgr *mgr; /* NULL: the folder was left in the meantime */
	int dir;             /* Duplicate of slot_folder.lock, so that the lock lasts until the sweep ends */
	uint64_t oldest;     /* Files of this agent from this number on may be in use */
	uint64_t files, bytes; /* Removed */
};

/* ---- files ---- */

void slot_file_begin(struct slotmgr *m, const char *kind, struct slot_file *f)
{
	f->number = ++m->folder.last_number;
	int n = snprintf(f->path, sizeof f->path, "%s/", m->folder.path);
	(void)snprintf(f->path + n, sizeof f->path - (size_t)n, FILE_PREFIX "%d-%s-%llu", (int)getpid(), kind,
		(unsigned long long)f->number);
	f->name = f->path + n;
	cgn_list_push(&m->folder.files, &f->link);
}

void slot_file_end(struct slot_file *f)
{
	cgn_list_drop(&f->link);
}

static uint64_t oldest_number(const struct slotmgr *m)
{
	uint64_t least = m->folder.last_number + 1;
	cgn_list_each (l, &m->folder.files) {
		const struct slot_file *f = CGN_CONTAINER(l, struct slot_file, link);
		least = f->number < least ? f->number : least;
	}
	return least;
}

/* ---- stale files ---- */

static bool file_is_stale(const char *name, uint64_t least)
{
	int pid = 0;
	unsigned long long number = 0;
	if (strncmp(name, FILE_PREFIX, sizeof FILE_PREFIX - 1) != 0)
		return false;
	if (sscanf(name, FILE_PREFIX "%d-%*[a-z]-%llu", &pid, &number) != 2 || pid != (int)getpid())
		return true; /* From an earlier agent */
	return number < least;
}

static void folder_remove_stale(struct slot_folder_sweep *w)
{
	int fd = openat(w->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
	for (const struct dirent *f; d != NULL && (f = readdir(d)) != NULL;) {
		struct stat st;
		if (!file_is_stale(f->d_name, w->oldest))
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

static void log_sweep(const struct slotmgr *m, const struct slot_folder_sweep *w)
{
	if (w->files > 0)
		cgn_log(INFO, "slot.swept", F_STR("engine", m->name), F_STR("dir", m->folder.path),
			F_U64("files", w->files), F_U64("bytes", w->bytes));
}

static void folder_sweep_work(void *arg)
{
	folder_remove_stale(arg);
}

static void on_folder_swept(void *arg)
{
	struct slot_folder_sweep *w = arg;
	struct slotmgr *m = w->mgr;
	(void)close(w->dir);
	if (m != NULL) {
		CGN_LIVE(m, SLOTMGR_TAG);
		log_sweep(m, w);
		m->folder.sweep = NULL;
		cgn_timer_set(&m->folder.sweep_timer, SWEEP_EVERY);
	}
	free(w);
}

static void on_sweep_timer(struct cgn_timer *t)
{
	struct slotmgr *m = CGN_CONTAINER(t, struct slotmgr, folder.sweep_timer);
	CGN_LIVE(m, SLOTMGR_TAG);
	int dir = fcntl(m->folder.lock, F_DUPFD_CLOEXEC, 0);
	if (dir < 0) {
		cgn_timer_set(t, SWEEP_EVERY);
		return;
	}
	struct slot_folder_sweep *w = m->folder.sweep = CGN_NEW(struct slot_folder_sweep);
	*w = (struct slot_folder_sweep){.mgr = m, .dir = dir, .oldest = oldest_number(m)};
	cgn_loop_work(m->loop, folder_sweep_work, on_folder_swept, w);
}

/* ---- the lock ---- */

static CGN_RC folder_fail(const struct slotmgr *m, struct cgn_err *err)
{
	int e = errno;
	if (e == EWOULDBLOCK)
		return CGN_FAIL(err, STORAGE,
			"engine.slot_dir %.200s belongs to another engine of this agent or of another agent on this machine, which would remove each other's files; give each engine a folder of its own",
			m->folder.path);
	return CGN_FAIL(err, STORAGE, "engine.slot_dir %.200s can't be used: %s", m->folder.path,
		strerror(e));
}

CGN_RC slot_folder_take(struct slotmgr *m, struct cgn_err *err)
{
	if (m->folder.lock >= 0)
		return CGN_OK;
	int fd = open(m->folder.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0) {
		cgn_rc rc = folder_fail(m, err);
		if (fd >= 0)
			(void)close(fd);
		return rc;
	}
	m->folder.lock = fd;
	/* In containers every agent may have the same pid: files of an earlier agent, or that its engine writes
	 * late, have smaller numbers. */
	m->folder.last_number = cgn_clock_wall_ms() * NUMBERS_PER_MS;
	/* Remove the files of an agent that was killed, before new files are created. */
	struct slot_folder_sweep first = {.dir = fd, .oldest = UINT64_MAX};
	folder_remove_stale(&first);
	log_sweep(m, &first);
	cgn_timer_init(&m->folder.sweep_timer, m->loop, on_sweep_timer);
	cgn_timer_set(&m->folder.sweep_timer, SWEEP_EVERY);
	return CGN_OK;
}

void slot_folder_leave(struct slotmgr *m)
{
	if (m->folder.lock < 0)
		return;
	cgn_timer_cancel(&m->folder.sweep_timer);
	if (m->folder.sweep != NULL)
		m->folder.sweep->mgr = NULL;
	m->folder.sweep = NULL;
	(void)close(m->folder.lock);
	m->folder.lock = -1;
}
