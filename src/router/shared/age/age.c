/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/age/age.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>

#include "base/log/log.h"
#include "joint/cluster/statefile/statefile.h"
#include "policy/who/age/age.h"

#define GW_AGE_TAG 0x64a6e001U
#define FILE_MAX   ((size_t)4096)
#define FAR_AHEAD  3600U /* Seconds between wall clock and age clock that are logged. */

struct gw_age {
	uint32_t tag;
	pthread_mutex_t lock;
	struct age age;
	struct cgn_loop *loop;
	struct statefile *file;
	cgn_nsec written_at; /* 0: never. */
	bool told;
};

static uint64_t wall_seconds(void)
{
	return cgn_clock_wall_ms() / 1000;
}

/* Return the time of the newest file in the folder of |path|; the wall clock's when there is none. */
static uint64_t newest_file(const char *path)
{
	struct stat st;
	uint64_t newest = 0;
	const char *slash = strrchr(path, '/');
	char *folder = slash != NULL ? strndup(path, (size_t)(slash - path)) : NULL;
	DIR *d = folder != NULL ? opendir(folder) : NULL;
	free(folder);
	for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d))
		if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
			(uint64_t)st.st_mtim.tv_sec > newest)
			newest = (uint64_t)st.st_mtim.tv_sec;
	if (d != NULL)
		(void)closedir(d);
	return newest > 0 ? newest : wall_seconds();
}

static uint64_t seen_last(struct gw_age *a, const char *path)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct cgn_err why;
	uint64_t seen = 0;
	if (!statefile_read(a->file, FILE_MAX, &text))
		return newest_file(path);
	if (cgn_ok(age_read(cgn_buf_view(&text), &seen, &why)))
		return seen;
	statefile_set_aside(a->file, why.msg);
	return newest_file(path);
}

struct gw_age *gw_age_open(struct cgn_loop *l, const char *path)
{
	struct gw_age *a = CGN_NEW(struct gw_age);
	*a = (struct gw_age){.tag = GW_AGE_TAG, .loop = l};
	(void)pthread_mutex_init(&a->lock, NULL);
	a->file = statefile_open(l, path, "clock of deletions");
	age_begin(&a->age, seen_last(a, path), cgn_clock_now());
	return a;
}

uint64_t gw_age_now(struct gw_age *a)
{
	CGN_LIVE(a, GW_AGE_TAG);
	(void)pthread_mutex_lock(&a->lock);
	uint64_t now = age_now(&a->age, cgn_clock_wall_ms(), cgn_clock_now());
	(void)pthread_mutex_unlock(&a->lock);
	return now;
}

static void age_text(struct gw_age *a, struct cgn_buf *out)
{
	(void)gw_age_now(a);
	(void)pthread_mutex_lock(&a->lock);
	age_write(&a->age, out);
	(void)pthread_mutex_unlock(&a->lock);
}

/* Log a wall clock that has jumped, once until the age clock has caught up. */
static void ahead_tell(struct gw_age *a)
{
	uint64_t now = gw_age_now(a), wall = wall_seconds(), ahead = wall > now ? wall - now : 0;
	if (ahead > FAR_AHEAD && !a->told)
		cgn_log(WARN, "router.clock_ahead", F_U64("ahead_s", ahead), F_U64("seen_unix", now),
			F_STR("why",
				"the wall clock is ahead of the time that this router saw last: it did not run meanwhile, or the clock is wrong"),
			F_STR("then",
				"usage, files, batches and invites are deleted by a clock that catches up by a day in each hour"),
			F_STR("do", "check the machine's clock"));
	a->told = ahead > 0 && (a->told || ahead > FAR_AHEAD);
}

void gw_age_tick(struct gw_age *a)
{
	struct cgn_buf text = {.n = 0};
	cgn_nsec now = cgn_loop_now(a->loop);
	ahead_tell(a);
	if (statefile_is_busy(a->file) ||
		(a->written_at != 0 && cgn_since(now, a->written_at) < GW_AGE_EVERY))
		return;
	a->written_at = now;
	age_text(a, &text);
	statefile_write(a->file, &text);
}

void gw_age_close(struct gw_age **take)
{
	struct gw_age *a = *take;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	*take = NULL;
	if (a == NULL)
		return;
	CGN_LIVE(a, GW_AGE_TAG);
	age_text(a, &text);
	statefile_close(&a->file, text.n > 0 && !text.bad ? &text : NULL);
	(void)pthread_mutex_destroy(&a->lock);
	a->tag = 0;
	free(a);
}
