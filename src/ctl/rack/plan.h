/* SPDX-License-Identifier: Apache-2.0 */
/* plan: the files of one host, compared with what the host has; and what follows for its units. */
#pragma once
#include "ctl/install/install.h"
#include "ctl/rack/cert.h"
#include "policy/fleet/rack/rack.h"

#define RACK_MAX_FILES 64
#define RACK_PROGRAMS  "/usr/bin/"

struct rack_file {
	char path[200];
	struct cgn_buf text;
	const char *source;   /* File of a program, borrowed from the programs; NULL: |text|. */
	char sha256[65];      /* "": not known, as of a certificate that is made later. */
	unsigned mode, roles; /* |roles|: whose programs read it. */
	enum install_state state;
};
/* The programs that are copied to each host, behind those of roles. */
enum { RACK_CTL = RACK_ROLES, RACK_LAB, RACK_ALL_PROGRAMS };
/* The programs that are copied. */
struct rack_programs {
	struct {
		char source[4096], sha256[65];
	} of[RACK_ALL_PROGRAMS]; /* By role, then these. "": there is none in the folder. */
};
struct rack_node {
	const struct rack_host *host;
	struct rack_file files[RACK_MAX_FILES];
	size_t n;
	struct cgn_buf report; /* |seen| borrows from it. */
	struct rack_seen seen;
	struct install_record record; /* As it is to be. */
	struct {
		char path[512];
	} gone[INSTALL_MAX_FILES]; /* Recorded files that are not wanted any more. */
	size_t n_gone;
	bool noted; /* The record changes, though no file does. */
	unsigned writes, kept;
	unsigned start, restart, enable, disable; /* Roles. */
	/* Done so far: */
	bool written;
	unsigned started;
};

/* Find the programs in |dir| and sum them. */
CGN_RC rack_programs_find(const char *dir, struct rack_programs *out, struct cgn_err *err);
/* Write the files that the host is to have. */
CGN_RC rack_plan_files(struct rack *r, struct rack_pki *pki, const struct rack_programs *programs,
	struct rack_node *node, struct cgn_err *err);
/* Compare with |node|->report. With no files planned: everything recorded goes. */
CGN_RC rack_plan_compare(struct rack_node *node, struct cgn_err *err);
/* Print the differences and what happens to units. */
CGN_RC rack_plan_show(const struct rack_node *node, struct cgn_err *err);
bool rack_plan_writes(const struct rack_node *node); /* Does anything change on the host's disk? */
bool rack_plan_is_empty(const struct rack_node *node);
void rack_node_fini(struct rack_node *node);
/* Append "cgn-router cgn-agent". */
void rack_units_put(unsigned roles, struct cgn_buf *out);
