/* SPDX-License-Identifier: Apache-2.0 */
/* follow: security.follow_files: notices that other files of certificate, key and CA are there. Files that are written one after
 * the other are taken when all of them have stayed the same between two looks; a Secret's volume in Kubernetes changes at once. */
#include <sys/stat.h>

#include "joint/daemon/svc/svc_priv.h"
#include "policy/config/config.h"

#define LOOK_EVERY (2 * CGN_SEC)

/* A missing file has the stamp of zeros. */
static struct svc_stamp stamp_of(const char *file)
{
	struct stat st;
	if (file == NULL || stat(file, &st) != 0)
		return (struct svc_stamp){.inode = 0};
	return (struct svc_stamp){(uint64_t)st.st_ino, (int64_t)st.st_size, (int64_t)st.st_mtim.tv_sec,
		(int64_t)st.st_mtim.tv_nsec};
}

static bool stamps_equal(const struct svc_stamp *a, const struct svc_stamp *b)
{
	for (size_t i = 0; i < SVC_FOLLOWED; i++)
		if (a[i].inode != b[i].inode || a[i].bytes != b[i].bytes || a[i].second != b[i].second ||
			a[i].nanosecond != b[i].nanosecond)
			return false;
	return true;
}

static bool files_look(const struct svc_follow *f, struct svc_stamp out[SVC_FOLLOWED])
{
	bool all = true;
	for (size_t i = 0; i < SVC_FOLLOWED; i++) {
		out[i] = stamp_of(f->file[i]);
		all = all && (f->file[i] == NULL || out[i].inode != 0);
	}
	return all;
}

static void on_time(struct cgn_timer *t)
{
	struct svc_follow *f = CGN_CONTAINER(t, struct svc_follow, timer);
	struct svc_stamp now[SVC_FOLLOWED];
	bool all = files_look(f, now);
	bool stays = stamps_equal(now, f->seen);
	memcpy(f->seen, now, sizeof now);
	cgn_timer_set(t, LOOK_EVERY);
	if (!all || !stays || stamps_equal(now, f->taken))
		return;
	memcpy(f->taken, now, sizeof now); /* Files that are refused are not read again until they change. */
	f->changed(f->user);
}

void svc_follow_open(struct svc_follow *f, struct cgn_loop *l, const struct config *cfg,
	void (*changed)(void *user), void *user)
{
	cgn_timer_init(&f->timer, l, on_time);
	f->changed = changed;
	f->user = user;
	f->file[0] = cfg->security.cert_file;
	f->file[1] = cfg->security.key_file;
	f->file[2] = cfg->security.ca_file;
	if (!cfg->security.follow_files)
		return;
	(void)files_look(f, f->taken);
	memcpy(f->seen, f->taken, sizeof f->seen);
	cgn_timer_set(&f->timer, LOOK_EVERY);
}

void svc_follow_close(struct svc_follow *f)
{
	cgn_timer_cancel(&f->timer);
}
