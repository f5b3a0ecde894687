/* SPDX-License-Identifier: Apache-2.0 */
/* limits: what the system lets this process use, so that a program can say at its start that it was told to
 * take more, instead of being killed once it does. Read from /proc and from the control groups' file systems,
 * version 1 and 2 (cgroups(7)), where systemd and container runtimes mount them. Synchronous: for boot. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define LIMITS_WHO_BYTES 512

struct limits_memory {
	uint64_t bytes; /* UINT64_MAX: nobody says */
	/* a control group's limit: the kernel kills who goes beyond, whatever else there is */
	bool group;
	char who[LIMITS_WHO_BYTES]; /* the file that says so; "" then */
};
/* The least of what the machine has (MemTotal) and of the limits of this process' groups and of those above
 * them. What cannot be read sets no limit: inside a container the groups above its own are not seen. |root|
 * goes before all paths: "", or a folder for tests. */
void limits_memory(const char *root, struct limits_memory *out);
