/* SPDX-License-Identifier: Apache-2.0 */
/* ipmi: the readings of one BMC, again and again, by running ipmitool: `dcmi power reading`, then `-c sdr list full`. IPMI
 * has no library that could be linked and is kept up to date; ipmitool knows the vendors' ways, and what it does wrong
 * stays in its own process. A round that fails leaves the readings of the last one, which
 * become stale; the next round waits longer, up to 5 minutes. A BMC without DCMI is asked for it once in 240 rounds.
 *
 * Bounds of a BMC: one process, 256 readings, 4,096 bytes of a line. Memory: some 170 KiB. One loop, its thread; never
 * waits for the program. */
#pragma once
#include "io/os/loop/loop.h"
#include "policy/power/power/power.h"

#define IPMI_MAX_READINGS 256

struct ipmi_bmc;
struct ipmi_bmc_cfg {
	const char *program; /* "ipmitool", or a path */
	const char *
		host; /* NULL: the BMC of this machine, by /dev/ipmi0. Else a name or an address, for RMCP+ */
	unsigned port;             /* 0: 623 */
	const char *user;          /* With a host; NULL: none */
	const char *password_file; /* ipmitool reads its first line in each round; never in its arguments */
	const char *node;          /* The cluster's id of the machine; "": readings belong to no node */
	cgn_nsec timeout;          /* A run of the program may take twice as long; then it is killed */
	cgn_nsec interval;         /* From the end of a round to the begin of the next */
	cgn_nsec delay;            /* Before the first round */
};
/* Start to read; copies |cfg|. An ipmitool that is missing is told by the view. */
struct ipmi_bmc *ipmi_bmc_open(struct cgn_loop *l, const struct ipmi_bmc_cfg *cfg);
void ipmi_bmc_close(struct ipmi_bmc **take); /* Kills a program that runs. NULL-safe. */

struct ipmi_bmc_view {
	const struct power_reading *reading; /* Borrowed until the next turn of the loop */
	size_t n;
	bool is_up;      /* The last round was whole */
	const char *why; /* Not up: the reason; "": no round has ended yet */
	cgn_nsec last;   /* When the last whole round ended; 0: never */
	uint64_t rounds, failures;
};
struct ipmi_bmc_view ipmi_bmc_view(const struct ipmi_bmc *b);
