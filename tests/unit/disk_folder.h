/* SPDX-License-Identifier: Apache-2.0 */
/* A folder for tests that write much: in memory where there is room, so that the tests do not wait for a
 * shared disk. A test holds a lock on its folder while it or a child of it runs. A killed test leaves its folder
 * behind; the next test that makes one removes it. */
#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define DISK_FOLDER_BEGIN "cgn-test-"

static int disk_folder_remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	(void)at;
	(void)chmod(path, 0700);
	return remove(path);
}

static inline void disk_folder_remove(const char *path)
{
	(void)nftw(path, disk_folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Returns a descriptor that holds the lock, or -1. */
static int disk_folder_lock(const char *path, int how)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || flock(fd, how) == 0)
		return fd;
	close(fd);
	return -1;
}

/* Remove the folders in |base| that no process has locked. The caller has locked |base|. */
static void disk_folder_clean(const char *base)
{
	DIR *d = opendir(base);
	for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
		char path[300];
		if (strncmp(e->d_name, DISK_FOLDER_BEGIN, strlen(DISK_FOLDER_BEGIN)) != 0)
			continue;
		(void)snprintf(path, sizeof path, "%s/%s", base, e->d_name);
		int fd = disk_folder_lock(path, LOCK_EX | LOCK_NB);
		if (fd < 0)
			continue;
		disk_folder_remove(path);
		close(fd);
	}
	if (d != NULL)
		closedir(d);
}

/* Make a folder in |base|. Its lock is held until the process ends. */
static inline void disk_folder_make_in(char out[64], const char *base, const char *name)
{
	int lock = disk_folder_lock(base, LOCK_EX);
	disk_folder_clean(base);
	(void)snprintf(out, 64, "%s/" DISK_FOLDER_BEGIN "%s-XXXXXX", base, name);
	CGN_MUST(mkdtemp(out) != NULL && disk_folder_lock(out, LOCK_EX) >= 0);
	if (lock >= 0)
		close(lock);
}

static inline void disk_folder_make(char out[64], const char *name)
{
	struct statvfs v;
	bool memory = statvfs("/dev/shm", &v) == 0 && (uint64_t)v.f_bavail * v.f_frsize >= (uint64_t)1 << 30;
	disk_folder_make_in(out, memory ? "/dev/shm" : "/tmp", name);
}
