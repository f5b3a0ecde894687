/* SPDX-License-Identifier: Apache-2.0 */
/* memlimit: the memory that the system lets this process use, so that a program can report at its start that it
 * is configured to take more, instead of being killed later. Read from /proc and from the file systems of
 * control groups, version 1 and 2 (cgroups(7)), where systemd and container runtimes mount them. Synchronous:
 * for boot. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define MEMLIMIT_WHO_BYTES 512

struct memlimit {
	uint64_t bytes; /* UINT64_MAX: no limit is stated. */
	/* A control group's limit: the kernel kills a process that exceeds it, even when the machine has
	 * memory left. */
	bool group;
	char who[MEMLIMIT_WHO_BYTES]; /* The file that states the limit; "" when none does. */
};
/* Return how many processes the kernel killed so far because there was no memory: of this process' group where version 2
 * counts that, else of the machine. Only differences mean something. */
uint64_t memlimit_oom_kills(const char *root);
/* Find the least of the machine's memory (MemTotal) and the limits of this process' groups and of the groups
 * above them. What cannot be read sets no limit: a container does not see the groups above its own. |root|
 * goes before all paths: "", or a folder for tests. */
void memlimit_find(const char *root, struct memlimit *out);
