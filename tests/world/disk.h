/* SPDX-License-Identifier: Apache-2.0 */
/* disk: the faults of a machine's disk, and the bytes that are left on it when the machine dies.
 *
 *	struct world_faults slow = {.sync_ns = 3 * WORLD_SEC, .write_error = 1000};
 *	world_disk(h, &slow);    from now on; NULL: a good disk
 *	world_host_crash(h);     the power fails: start the programs again with world_start
 *
 * A file's bytes are safe when the file was synced after they were written; a name (of a new, renamed or removed
 * file) when its folder was synced, and then all names that were changed before it are. Each write that is not safe is
 * kept, lost or torn when the machine dies, by the seed. A process that is killed alone loses nothing. */
#pragma once
#include "world.h"

struct world_faults {
	uint64_t room; /* Bytes that fit on the disk, with those that are there; 0: no limit */
	uint32_t read_error, write_error,
		sync_error; /* Each n-th call, by the seed, fails with EIO; 0: none */
	uint64_t sync_ns;   /* A sync takes up to so long; 0: a few milliseconds */
	bool read_only;
};
void world_disk(struct world_host *h, const struct world_faults *f);
uint64_t world_disk_used(
	const struct world_host *h); /* Bytes of all files, also of removed ones that are open */
/* Bytes of the files below the folder, 0 if there is none. */
uint64_t world_folder_bytes(struct world_host *h, const char *path);
/* The machine dies: its processes end, its files go back to the bytes that were synced. */
void world_host_crash(struct world_host *h);
/* Turn |n| bits of the file over, somewhere. False: there is no such file, or it is empty. */
bool world_file_damage(struct world_host *h, const char *path, unsigned n);
