/* SPDX-License-Identifier: Apache-2.0 */
/* pull: fetches a model's files into a folder, several at a time, and says how far it is. */
#include <errno.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/stat.h>
#include <sys/statvfs.h>

#include "ctl/model/pull_priv.h"
#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"
#include "joint/ctl/line/progress.h"

#define LIST_MOST ((size_t)256 << 20)
#define LOOK_MS   200

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signo)
{
	interrupted = signo;
}

/* ---- the plan ---- */

static CGN_RC folder_choose(struct pull *p, struct cgn_err *err)
{
	const char *to = ctl_flag(p->args, "--to"), *models = getenv("CGN_MODELS"),
		   *data = getenv("XDG_DATA_HOME");
	const char *home = getenv("HOME");
	struct cgn_str title = modelsource_title(&p->source);
	int n;
	if (to != NULL)
		n = snprintf(p->to, sizeof p->to, "%s", to);
	else if (models != NULL && models[0] != '\0')
		n = snprintf(p->to, sizeof p->to, "%s/%.*s", models, CGN_STR_ARG(title));
	else if (data != NULL && data[0] == '/')
		n = snprintf(p->to, sizeof p->to, "%s/cognitora/models/%.*s", data, CGN_STR_ARG(title));
	else if (home != NULL && home[0] == '/')
		n = snprintf(p->to, sizeof p->to, "%s/.local/share/cognitora/models/%.*s", home,
			CGN_STR_ARG(title));
	else
		return CGN_FAIL(err, INVALID, "where to? Give --to DIR, or set CGN_MODELS or HOME");
	while (n > 1 && (size_t)n < sizeof p->to && p->to[n - 1] == '/')
		p->to[--n] = '\0';
	if (n <= 0 || (size_t)n >= sizeof p->to)
		return CGN_FAIL(err, INVALID, "the folder's name has more than %zu bytes", sizeof p->to - 1);
	return CGN_OK;
}

static bool glob_fits(const struct ctl_args *a, const char *flag, const char *path)
{
	const char *glob;
	for (size_t i = 0; (glob = ctl_flag_nth(a, flag, i)) != NULL; i++)
		if (fnmatch(glob, path, 0) == 0)
			return true;
	return false;
}

/* Keep the files that --include and --exclude leave. */
static CGN_RC files_filter(struct pull *p, struct cgn_err *err)
{
	size_t n = 0;
	bool some = ctl_flag_nth(p->args, "--include", 0) != NULL;
	for (size_t i = 0; i < p->list.n; i++) {
		const char *path = p->list.files[i].path;
		if ((!some || glob_fits(p->args, "--include", path)) &&
			!glob_fits(p->args, "--exclude", path))
			p->list.files[n++] = p->list.files[i];
	}
	if (n == 0)
		return CGN_FAIL(err, NOT_FOUND,
			"%s has %zu files, and --include and --exclude leave none of them", p->from,
			p->list.n);
	p->list.n = n;
	return CGN_OK;
}

static uint64_t bytes_in(const struct pull *p)
{
	uint64_t all = 0;
	for (size_t i = 0; i < p->list.n; i++)
		all += p->list.files[i].size != UINT64_MAX ? p->list.files[i].size : 0;
	return all;
}

static uint64_t bytes_there(const struct pull *p)
{
	uint64_t all = 0;
	for (size_t i = 0; i < p->list.n; i++) {
		char path[PULL_PATH], part[PULL_PATH + 8];
		struct stat st;
		(void)snprintf(path, sizeof path, "%s/%s", p->to, p->list.files[i].path);
		(void)snprintf(part, sizeof part, "%s.part", path);
		if (stat(path, &st) == 0 || stat(part, &st) == 0)
			all += (uint64_t)st.st_size;
	}
	return all;
}

static void size_text(uint64_t n, char out[24])
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double v = (double)n;
	size_t u = 0;
	for (; v >= 1024 && u + 1 < CGN_COUNT(units); u++)
		v /= 1024;
	(void)snprintf(out, 24, u == 0 ? "%.0f %s" : "%.1f %s", v, units[u]);
}

static CGN_RC room_check(const struct pull *p, struct cgn_err *err)
{
	struct statvfs fs;
	char need[24], room[24];
	uint64_t all = bytes_in(p), there = bytes_there(p);
	if (statvfs(p->to, &fs) != 0)
		return CGN_FAIL(err, STORAGE, "%s: %s", p->to, strerror(errno));
	uint64_t left = all > there ? all - there : 0, room_left = (uint64_t)fs.f_bavail * fs.f_frsize;
	size_text(left, need);
	size_text(room_left, room);
	if (left > room_left)
		return CGN_FAIL(err, STORAGE, "%s: %s are missing, and the disk has room for %s", p->to, need,
			room);
	return CGN_OK;
}

/* ---- the threads ---- */

static void failure_keep(struct pull *p, const struct cgn_err *err)
{
	(void)pthread_mutex_lock(&p->lock);
	if (p->failed.code == CGN_FINE)
		p->failed = *err;
	(void)pthread_mutex_unlock(&p->lock);
	atomic_store(&p->stop, true);
}

static void *files_take(void *user)
{
	struct pull *p = user;
	struct fetch *f = NULL;
	struct cgn_err err;
	size_t i;
	if (p->source.kind != MODELSOURCE_PATH && !cgn_ok(fetch_open(&f, &err)))
		failure_keep(p, &err);
	while (!atomic_load(&p->stop) && (i = atomic_fetch_add(&p->next, 1)) < p->list.n) {
		if (!cgn_ok(pull_file(p, f, i, &err))) {
			failure_keep(p, &err);
			break;
		}
		atomic_fetch_add(&p->ended, 1);
		if (!ctl_progress_shown())
			(void)fprintf(stderr, "%s%s\n", ctl_shown(p->list.files[i].path),
				p->done[i].kept ? ": there already" : "");
	}
	fetch_close(&f);
	return NULL;
}

static void progress_show(const struct pull *p, cgn_nsec began, uint64_t first)
{
	char have[24], all[24], speed[24];
	uint64_t now = atomic_load(&p->bytes), total = bytes_in(p);
	double seconds = (double)(cgn_clock_now() - began) / (double)CGN_SEC;
	double rate = seconds > 0 && now > first ? (double)(now - first) / seconds : 0;
	double left = rate > 0 && total > now ? (double)(total - now) / rate : 0;
	size_text(now, have);
	size_text(total, all);
	size_text((uint64_t)rate, speed);
	ctl_progress("%s %s of %s, %zu of %zu files, %s/s, %.0f:%02.0f left",
		ctl_bar(total > 0 ? (double)now / (double)total : 0).text, have, all, atomic_load(&p->ended),
		p->list.n, speed, (double)((uint64_t)left / 60), (double)((uint64_t)left % 60));
}

static CGN_RC files_fetch(struct pull *p, struct cgn_err *err)
{
	pthread_t threads[PULL_PARALLEL];
	size_t n = 0;
	cgn_nsec began = cgn_clock_now();
	uint64_t want = p->parallel < p->list.n ? p->parallel : p->list.n;
	while (n < want && pthread_create(&threads[n], NULL, files_take, p) == 0)
		n++;
	if (n == 0)
		return CGN_FAIL(err, NO_MEMORY, "no thread could be started");
	while (atomic_load(&p->ended) < p->list.n && !atomic_load(&p->stop)) {
		(void)nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000}, NULL);
		progress_show(p, began, 0);
		if (interrupted != 0)
			atomic_store(&p->stop, true);
	}
	for (size_t i = 0; i < n; i++)
		(void)pthread_join(threads[i], NULL);
	ctl_progress_end();
	if (interrupted != 0)
		return CGN_FAIL(err, CANCELLED, "ended; the same command goes on where it was");
	*err = p->failed;
	return CGN_RC_OF(err->code);
}

/* ---- output ---- */

static CGN_RC plan_print(const struct pull *p, struct cgn_err *err)
{
	struct ctl_table t = {.wide = p->args->wide};
	ctl_table_column(&t, "FILE", false);
	ctl_table_column(&t, "BYTES", true);
	ctl_table_column(&t, "SHA256", false);
	for (size_t i = 0; i < p->list.n; i++) {
		const struct modelsource_file *f = &p->list.files[i];
		ctl_table_cell(&t, "%s", f->path);
		if (f->size != UINT64_MAX)
			ctl_table_cell(&t, "%llu", (unsigned long long)f->size);
		else
			ctl_table_cell(&t, "%s", "");
		ctl_table_cell(&t, "%s", f->sha256);
	}
	return ctl_table_print(&t, p->args->json, err);
}

static CGN_RC end_print(const struct pull *p, double seconds, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	struct json_out j = json_out_to(&out);
	char size[24];
	size_t kept = 0;
	for (size_t i = 0; i < p->list.n; i++)
		kept += p->done[i].kept;
	size_text(atomic_load(&p->bytes), size);
	if (!p->args->json) {
		cgn_buf_fmt(&out, "%s: %zu files, %s, in %s", ctl_shown(p->from), p->list.n, size,
			ctl_shown(p->to));
		if (kept > 0)
			cgn_buf_fmt(&out, "; %zu of them were there already", kept);
		cgn_buf_fmt(&out, " (%.1f s)\n", seconds);
		return ctl_print(&out, err);
	}
	json_open(&j, '{');
	json_key_z(&j, "source", p->from);
	if (p->commit[0] != '\0')
		json_key_z(&j, "commit", p->commit);
	json_key_z(&j, "folder", p->to);
	json_key_u64(&j, "files", p->list.n);
	json_key_u64(&j, "kept", kept);
	json_key_u64(&j, "bytes", atomic_load(&p->bytes));
	json_close(&j, '}');
	cgn_buf_char(&out, '\n');
	return ctl_print(&out, err);
}

static CGN_RC check_print(const struct pull *p, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	size_t files, wrong;
	CGN_TRY(pull_record_check(p->to, &out, &files, &wrong, err));
	if (wrong == 0)
		cgn_buf_fmt(&out, "%s: all %zu files are as they were pulled\n", ctl_shown(p->to), files);
	CGN_TRY(ctl_print(&out, err));
	return wrong == 0
		? CGN_OK
		: CGN_FAIL(err, STORAGE,
			  "%s: %zu of %zu files are not as they were pulled: remove them and pull again",
			  p->to, wrong, files);
}

/* ---- the verb ---- */

static CGN_RC options_read(struct pull *p, struct cgn_err *err)
{
	const char *sum = ctl_flag(p->args, "--sha256");
	p->from = p->args->words[0];
	p->ca_file = ctl_flag(p->args, "--ca");
	p->sha256 = sum != NULL && strncmp(sum, "sha256:", 7) == 0 ? sum + 7 : sum;
	CGN_TRY(ctl_flag_u64(p->args, "--parallel", 1, PULL_PARALLEL, &p->parallel, err));
	CGN_TRY(ctl_flag_u64(p->args, "--retries", 0, 100, &p->retries, err));
	CGN_TRY(modelsource_parse(p->from, &p->source, err));
	if (p->source.kind ==
		MODELSOURCE_HTTP) /* A query may be a signature: it is shown and recorded nowhere. */
		p->from = cgn_arena_strz(&p->arena, (struct cgn_str){p->from, strcspn(p->from, "?")});
	if (p->from == NULL)
		return CGN_FAIL(err, NO_MEMORY, "out of memory");
	if (p->sha256 != NULL && p->source.kind != MODELSOURCE_HTTP)
		return CGN_FAIL(err, INVALID,
			"--sha256 is for a file by http:// or https://; other sources tell the sums themselves");
	if (p->sha256 != NULL &&
		(strlen(p->sha256) != 64 || strspn(p->sha256, "0123456789abcdefABCDEF") != 64))
		return CGN_FAIL(err, INVALID, "--sha256: \"%s\" is not of 64 hexadecimal digits", sum);
	return folder_choose(p, err);
}

static CGN_RC pull_run(struct pull *p, struct cgn_err *err)
{
	cgn_nsec began = cgn_clock_now();
	CGN_TRY(options_read(p, err));
	if (ctl_switch(p->args, "--check"))
		return check_print(p, err);
	CGN_TRY(pull_list(p, err));
	CGN_TRY(files_filter(p, err));
	if (ctl_switch(p->args, "--dry-run"))
		return plan_print(p, err);
	p->done = CGN_NEW_ARRAY(struct pull_done, p->list.n);
	CGN_TRY(disk_mkdirs(p->to, 0755, err));
	CGN_TRY(room_check(p, err));
	CGN_TRY(files_fetch(p, err));
	CGN_TRY(pull_record_write(p, err));
	return end_print(p, (double)(cgn_clock_now() - began) / (double)CGN_SEC, err);
}

CGN_RC ctl_model_pull(const struct ctl_args *a, struct cgn_err *err)
{
	struct sigaction end = {.sa_handler = on_interrupt};
	struct pull *p = CGN_NEW(struct pull);
	p->args = a;
	cgn_arena_init(&p->arena, LIST_MOST);
	p->list.arena = &p->arena;
	(void)pthread_mutex_init(&p->lock, NULL);
	(void)sigaction(SIGINT, &end, NULL);
	(void)sigaction(SIGTERM, &end, NULL);
	cgn_rc rc = pull_run(p, err);
	(void)pthread_mutex_destroy(&p->lock);
	cgn_arena_fini(&p->arena);
	free(p->done);
	free(p);
	return rc;
}
