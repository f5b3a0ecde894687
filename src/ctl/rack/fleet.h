/* SPDX-License-Identifier: Apache-2.0 */
/* fleet: runs the scripts of deploy/rack on hosts by the system's ssh, several at a time. With a root, the hosts are its folders, and no
 * ssh runs. All functions: the one thread of cgn-ctl. */
/* rack, the room: the verbs that install a rack's hosts by ssh and keep them up to date. */
#pragma once
#include "ctl/ctl.h"
#include "policy/fleet/rack/rack.h"

struct fleet {
	const char *root;   /* "": hosts by ssh; else host NAME is the folder ROOT/NAME. */
	const char *folder; /* Folder of the inventory, to which ssh_config is relative. */
	uint64_t parallel;
	char work[64]; /* Sockets of ssh's connections, in a folder of mode 0700. */
};
/* A run of a script of deploy/rack on one host. */
struct fleet_call {
	const struct rack_host *host;
	const char *order;    /* state, put or units */
	struct cgn_buf input; /* After the first line, which is added. */
	int file;             /* Not 0: a file with the whole input, from its begin; closed after the call. */
	/* Called before the call begins, to make |input| or |file|. May be NULL. */
	CGN_RC (*prepare)(struct fleet_call *c, struct cgn_err *err);
	void *user;
	char say[160];         /* Printed with the host's name when the call ended well; "": nothing. */
	struct cgn_buf output; /* Standard output; at most RACK_REPORT_MAX. */
	bool done;
	/* For the fleet. */
	int in, out, err;
	int pid;
};
/* Make the work folder. |parallel|: 1 to 64. */
CGN_RC fleet_open(struct fleet *f, struct cgn_err *err);
/* End the connections of |n| hosts and remove the work folder. */
void fleet_close(struct fleet *f, const struct rack_host *const *hosts, size_t n);
/* Run all calls, each |done| when it ended well. After a failure no further call begins; those that run are
 * awaited. The error names the first host that failed, and has the end of its output. */
CGN_RC fleet_run(struct fleet *f, struct fleet_call *calls, size_t n, struct cgn_err *err);
void fleet_call_fini(struct fleet_call *c);
/* Append the first line of every input. */
void fleet_first_line(const struct fleet *f, const struct rack_host *h, struct cgn_buf *out);
/* Start a program of the system with these three descriptors; -1: it cannot be started. */
int fleet_start(char *const argv[], int in, int out, int err);
/* Return the exit status; 255: it was ended by a signal. */
int fleet_wait(int pid);
/* Remove a folder with all that is in it. */
void fleet_remove(const char *folder);
