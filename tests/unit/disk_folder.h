/* SPDX-License-Identifier: Apache-2.0 */
/* A folder for tests that write much: in memory where there is room, so that the tests do not wait for a
 * shared disk. */
#pragma once
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static inline void disk_folder_make(char out[64], const char *name)
{
	struct statvfs v;
	bool memory = statvfs("/dev/shm", &v) == 0 && (uint64_t)v.f_bavail * v.f_frsize >= (uint64_t)1 << 30;
	(void)snprintf(out, 64, "%s/%s-XXXXXX", memory ? "/dev/shm" : "/tmp", name);
	CGN_MUST(mkdtemp(out) != NULL);
}

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
